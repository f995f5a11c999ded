// The one question that base asks about UTF-8; text processing proper is server/text/unicode.h.
#pragma once

#include <cstddef>
#include <string_view>

namespace ark {

// Length of the valid sequence at the front of `text` (RFC 3629: no overlongs, no surrogates); 0 if there is
// none. `text` is not empty.
std::size_t utf8_length(std::string_view text);

}  // namespace ark
