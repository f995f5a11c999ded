// Grammars in llama.cpp's GBNF -> rules.
#pragma once

#include <string_view>

#include "server/text/budget.h"
#include "server/text/grammar/expression.h"

namespace ark::text::grammar {

// Returns the rule `root`. Throws kInvalidArgument with `what`, line and column.
RuleId parse_gbnf(std::string_view text, std::string_view what, Rules& rules, Budget& budget);

}  // namespace ark::text::grammar
