// What base asks about UTF-8; text processing proper is server/text/unicode.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ark {

// Length of the valid sequence at the front of `text` (RFC 3629: no overlongs, no surrogates); 0 if there is
// none. `text` is not empty.
std::size_t utf8_length(std::string_view text);

// The code point at the front of `text` if it is one that terminals and readers of logs obey instead of showing it:
// controls, separators of lines, marks of direction, invisible joiners.
std::optional<uint32_t> control_at(std::string_view text);

}  // namespace ark
