// Classes of characters that regular expressions name.
#pragma once

#include <string_view>

#include "server/text/grammar/code_set.h"

namespace ark::text::grammar {

// \d, \w or \s: in ASCII, or `wide`, all that anyone takes for one.
const CodeSet& escaped_class(char letter, bool wide);
// \p{name}; null where there is none.
const CodeSet* property_class(std::string_view name);

}  // namespace ark::text::grammar
