// Ids are signed, -1 for none; containers count in std::size_t.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ark {

// `id` as an index; not negative.
constexpr std::size_t at(int64_t id) { return static_cast<std::size_t>(id); }

}  // namespace ark
