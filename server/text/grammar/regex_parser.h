// Regular expressions as clients write them -> expressions.
#pragma once

#include <string_view>
#include <vector>

#include "server/text/budget.h"
#include "server/text/grammar/expression.h"

namespace ark::text::grammar {

enum class RegexDialect {
  kPython,      // `.` is anything but a line feed
  kEcmaScript,  // nor a carriage return, U+2028 and U+2029
};

// One of the alternatives that a pattern is made of, and whether `^` and `$` stand around it.
struct Alternative {
  bool begins = false, ends = false;
  ExpressionPtr expression;
};
struct ParsedRegex {
  std::vector<Alternative> alternatives;
  // Texts all of which match, and texts that hold a match.
  ExpressionPtr whole() const;
  ExpressionPtr search() const;
};

// \d, \w and \s are ASCII's. What is not one of them, as \W and [^\w], is neither ASCII's nor Unicode's: validators
// read them both ways. Throws kInvalidArgument with `what` and the index of the byte.
ParsedRegex parse_regex(std::string_view pattern, std::string_view what, RegexDialect dialect,
                        Budget& budget);

}  // namespace ark::text::grammar
