#include "server/text/grammar/expression.h"

namespace ark::text::grammar {
namespace {

ExpressionPtr made(Expression expression) {
  return std::make_shared<const Expression>(std::move(expression));
}

}  // namespace

ExpressionPtr character(CodeSet set) {
  return made({.kind = Expression::Kind::kCharacter, .characters = std::move(set)});
}

ExpressionPtr text(std::string text) { return one_of({std::move(text)}); }

ExpressionPtr one_of(std::vector<std::string> texts) {
  return made({.kind = Expression::Kind::kTexts, .texts = std::move(texts)});
}

ExpressionPtr sequence(std::vector<ExpressionPtr> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return made({.kind = Expression::Kind::kSequence, .parts = std::move(parts)});
}

ExpressionPtr choice(std::vector<ExpressionPtr> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return made({.kind = Expression::Kind::kChoice, .parts = std::move(parts)});
}

ExpressionPtr repeat(ExpressionPtr part, std::uint32_t min, std::uint32_t max) {
  return made({.kind = Expression::Kind::kRepeat, .parts = {std::move(part)}, .min = min, .max = max});
}

ExpressionPtr optional(ExpressionPtr part) { return repeat(std::move(part), 0, 1); }

ExpressionPtr reference(RuleId rule) { return made({.kind = Expression::Kind::kRule, .rule = rule}); }

ExpressionPtr nothing() { return sequence({}); }

}  // namespace ark::text::grammar
