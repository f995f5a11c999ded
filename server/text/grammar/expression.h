// What a grammar is written in before it is assembled: expressions over characters and rules that refer to each other.
// They are shared, so that the same part may stand in many places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "server/text/grammar/code_set.h"

namespace ark::text::grammar {

struct Expression;
using ExpressionPtr = std::shared_ptr<const Expression>;
using RuleId = std::uint32_t;

inline constexpr std::uint32_t kUnbounded = std::numeric_limits<std::uint32_t>::max();
// Of expressions in each other, and of what they are parsed from: assembling recurses.
inline constexpr int kMaxDepth = 256;
inline constexpr std::size_t kMaxCountDigits = 6;  // of a number of repetitions

struct Expression {
  enum class Kind { kCharacter, kTexts, kSequence, kChoice, kRepeat, kRule };
  Kind kind = Kind::kSequence;
  CodeSet characters;                // kCharacter: one of these
  std::vector<std::string> texts;    // kTexts: one of these
  std::vector<ExpressionPtr> parts;  // kSequence, kChoice; of kRepeat one
  std::uint32_t min = 0, max = 0;    // kRepeat
  RuleId rule = 0;                   // kRule
};

ExpressionPtr character(CodeSet set);
ExpressionPtr text(std::string text);
ExpressionPtr one_of(std::vector<std::string> texts);
ExpressionPtr sequence(std::vector<ExpressionPtr> parts);
ExpressionPtr choice(std::vector<ExpressionPtr> parts);  // of none: no text at all
ExpressionPtr repeat(ExpressionPtr part, std::uint32_t min, std::uint32_t max);
ExpressionPtr optional(ExpressionPtr part);
ExpressionPtr reference(RuleId rule);
ExpressionPtr nothing();  // the empty text

class Rules {
 public:
  // To be defined later. `name` stands in messages.
  RuleId declare(std::string name = "") {
    rules_.push_back({std::move(name), nullptr});
    return static_cast<RuleId>(rules_.size() - 1);
  }
  void define(RuleId rule, ExpressionPtr expression) { rules_[rule].expression = std::move(expression); }
  RuleId add(ExpressionPtr expression) {
    const RuleId rule = declare();
    define(rule, std::move(expression));
    return rule;
  }

  // Why some text cannot be, to be said if none can.
  void note_obstacle(std::string why) {
    if (obstacle_.empty()) obstacle_ = std::move(why);
  }
  const std::string& obstacle() const { return obstacle_; }

  std::size_t size() const { return rules_.size(); }
  const std::string& name(RuleId rule) const { return rules_[rule].name; }
  const ExpressionPtr& expression(RuleId rule) const { return rules_[rule].expression; }

 private:
  struct Rule {
    std::string name;
    ExpressionPtr expression;
  };
  std::vector<Rule> rules_;
  std::string obstacle_;
};

}  // namespace ark::text::grammar
