// The formats of strings that JSON Schema names.
#pragma once

#include <optional>
#include <string_view>

namespace ark::text::grammar {

// A pattern for whole strings; nothing for a format that is not known, which then says nothing.
std::optional<std::string_view> pattern_of_format(std::string_view format);

}  // namespace ark::text::grammar
