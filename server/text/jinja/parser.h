// Tokens -> syntax tree.
#pragma once

#include <string_view>

#include "server/text/jinja/ast.h"

namespace ark::text::jinja {

// kBadModel with the line if the source is not a template.
Block parse_template(std::string_view source);

}  // namespace ark::text::jinja
