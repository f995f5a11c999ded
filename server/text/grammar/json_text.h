// JSON as models write it: expressions for its parts.
#pragma once

#include <string>
#include <string_view>

#include "server/json_fwd.h"
#include "server/text/grammar/expression.h"

namespace ark::text::grammar {

// Blanks are bounded, and so are numbers: a weak model must not write them for ever. What must be a certain text
// (values of enum, names of members, strings with a pattern) is written in one way: raw, but for what JSON wants
// escaped.
class JsonText {
 public:
  explicit JsonText(Rules& rules) : rules_(rules) {}

  // Nothing, a space, or a line break and what indents the next line.
  ExpressionPtr blank();
  ExpressionPtr any_string();                                      // all of JSON's escapes in it
  ExpressionPtr any_string(std::uint32_t min, std::uint32_t max);  // of so many characters
  ExpressionPtr any_number();
  ExpressionPtr any_integer();
  ExpressionPtr any_value();
  ExpressionPtr any_object();
  ExpressionPtr any_array();
  // This one, with blanks where they may stand; null where it nests too deep.
  ExpressionPtr value(const Json& json, int depth = 0);
  ExpressionPtr string_other_than(const std::vector<std::string>& values);

  ExpressionPtr in_brackets(char open, ExpressionPtr inside, char close);
  ExpressionPtr comma();
  // The name as JSON's text.
  ExpressionPtr member(ExpressionPtr name, ExpressionPtr value);
  // Any number of them, but at least one.
  ExpressionPtr list(const ExpressionPtr& item);

 private:
  ExpressionPtr any_character();
  ExpressionPtr any_string_end();
  template <typename Write>
  ExpressionPtr once(RuleId& rule, Write write);

  static constexpr RuleId kNone = ~RuleId{0};
  Rules& rules_;
  RuleId blank_ = kNone, character_ = kNone, string_end_ = kNone, number_ = kNone, value_ = kNone,
         object_ = kNone, array_ = kNone;
};

// A string's value as JSON's text of it: quotes around, escapes in it.
std::string json_string(std::string_view value);
// What is written about a value, written about the text between the quotes.
ExpressionPtr in_quotes(const ExpressionPtr& value);
}  // namespace ark::text::grammar
