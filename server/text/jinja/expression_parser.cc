#include "server/text/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>

namespace ark::text::jinja {
namespace {

constexpr std::string_view kComparisons[] = {"==", "!=", "<", "<=", ">", ">="};

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.nesting_ > kMaxDepth)
    syntax_error(parser_.tokens_.line(), "nested deeper than " + std::to_string(kMaxDepth));
}

void ExpressionParser::grow(Expression& parent, const Expression* child) {
  if (!child) return;
  parent.depth = std::max(parent.depth, child->depth + 1);
  if (parent.depth > kMaxDepth) syntax_error(parent.line, "nested deeper than " + std::to_string(kMaxDepth));
}

void ExpressionParser::add(Expression& parent, ExpressionPtr child) {
  grow(parent, child.get());
  parent.items.push_back(std::move(child));
}

ExpressionPtr ExpressionParser::make(ExpressionKind kind, int line, ExpressionPtr first, ExpressionPtr second,
                                     ExpressionPtr third) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  for (ExpressionPtr* child : {&first, &second, &third})
    if (*child) add(*node, std::move(*child));
  return node;
}

ExpressionPtr ExpressionParser::constant(int line, Value value) const {
  auto node = make(ExpressionKind::kConstant, line);
  node->constant = std::move(value);
  return node;
}

ExpressionPtr ExpressionParser::condition() {
  const Nesting nesting(*this);
  const std::size_t known = unknown_.size();
  ExpressionPtr left = disjunction();
  while (tokens_.is_name("if")) {
    const int line = tokens_.take().line;
    ExpressionPtr test = disjunction();
    ExpressionPtr otherwise = tokens_.skip_name("else") ? condition() : nullptr;
    left = make(ExpressionKind::kCondition, line, std::move(left), std::move(test), std::move(otherwise));
    unknown_.resize(known);
  }
  return left;
}

void ExpressionParser::refuse_unknown_names() const {
  if (!unknown_.empty()) syntax_error(unknown_[0].line, unknown_[0].text);
}

ExpressionPtr ExpressionParser::disjunction() {
  return chain({{"or", ExpressionKind::kOr}}, TokenKind::kName, &ExpressionParser::conjunction);
}

ExpressionPtr ExpressionParser::conjunction() {
  return chain({{"and", ExpressionKind::kAnd}}, TokenKind::kName, &ExpressionParser::negation);
}

ExpressionPtr ExpressionParser::sum() {
  constexpr auto kKind = ExpressionKind::kArithmetic;
  return chain({{"+", kKind, Arithmetic::kAdd}, {"-", kKind, Arithmetic::kSubtract}}, TokenKind::kOperator,
               &ExpressionParser::concatenation);
}

ExpressionPtr ExpressionParser::product() {
  constexpr auto kKind = ExpressionKind::kArithmetic;
  return chain({{"*", kKind, Arithmetic::kMultiply},
                {"/", kKind, Arithmetic::kDivide},
                {"//", kKind, Arithmetic::kFloorDivide},
                {"%", kKind, Arithmetic::kModulo}},
               TokenKind::kOperator, &ExpressionParser::factor);
}

// Operands with operators of one rank between them, from left to right.
ExpressionPtr ExpressionParser::chain(std::initializer_list<Operator> operators, TokenKind kind,
                                      ExpressionPtr (ExpressionParser::*operand)()) {
  ExpressionPtr left = (this->*operand)();
  while (true) {
    const auto found = std::find_if(operators.begin(), operators.end(), [&](const Operator& each) {
      return TokenStream::matches(tokens_.current(), kind, each.text);
    });
    if (found == operators.end()) return left;
    const int line = tokens_.take().line;
    left = make(found->kind, line, std::move(left), (this->*operand)());
    left->arithmetic = found->arithmetic;
  }
}

ExpressionPtr ExpressionParser::negation() {
  if (!tokens_.is_name("not")) return comparison();
  const Nesting nesting(*this);
  const int line = tokens_.take().line;
  return make(ExpressionKind::kNot, line, negation());
}

ExpressionPtr ExpressionParser::comparison() {
  ExpressionPtr left = sum();
  ExpressionPtr node;
  while (true) {
    std::string name;
    if (tokens_.is(TokenKind::kOperator) && std::find(std::begin(kComparisons), std::end(kComparisons),
                                                      tokens_.current().text) != std::end(kComparisons)) {
      name = tokens_.take().text;
    } else if (tokens_.skip_name("in")) {
      name = "in";
    } else if (tokens_.is_name("not") && TokenStream::matches(tokens_.ahead(), TokenKind::kName, "in")) {
      tokens_.take(), tokens_.take();
      name = "not in";
    } else {
      return node ? std::move(node) : std::move(left);
    }
    if (!node) node = make(ExpressionKind::kCompare, tokens_.line(), std::move(left));
    node->names.push_back(std::move(name));
    add(*node, sum());
  }
}

ExpressionPtr ExpressionParser::concatenation() {
  ExpressionPtr left = product();
  if (!tokens_.is_operator("~")) return left;
  ExpressionPtr node = make(ExpressionKind::kConcatenate, tokens_.line(), std::move(left));
  while (tokens_.skip_operator("~")) add(*node, product());
  return node;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Nesting nesting(*this);
  ExpressionPtr node;
  const int line = tokens_.line();
  if (tokens_.skip_operator("-"))
    node = make(ExpressionKind::kNegate, line, unary(false));
  else
    node = primary();
  node = postfix(std::move(node));
  return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::primary() {
  switch (tokens_.current().kind) {
    case TokenKind::kName:
      return name_or_constant();
    case TokenKind::kString:
      return strings();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return number();
    default:
      break;
  }
  if (tokens_.skip_operator("(")) {
    ExpressionPtr node = tuple(true, true);
    tokens_.expect_operator(")");
    return node;
  }
  if (tokens_.is_operator("[")) return list();
  if (tokens_.is_operator("{")) return dict();
  tokens_.unexpected("an expression");
}

ExpressionPtr ExpressionParser::name_or_constant() {
  const Token token = tokens_.take();
  if (token.text == "true" || token.text == "True") return constant(token.line, true);
  if (token.text == "false" || token.text == "False") return constant(token.line, false);
  if (token.text == "none" || token.text == "None") return constant(token.line, Value());
  ExpressionPtr node = make(ExpressionKind::kName, token.line);
  node->name = token.text;
  return node;
}

ExpressionPtr ExpressionParser::number() {
  const Token token = tokens_.take();
  if (token.kind == TokenKind::kFloat) {
    double value = 0;
    std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
    return constant(token.line, value);
  }
  std::int64_t value = 0;
  const auto result = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
  if (result.ec != std::errc()) syntax_error(token.line, "the integer " + token.text + " exceeds 64 bits");
  return constant(token.line, value);
}

ExpressionPtr ExpressionParser::strings() {
  const int line = tokens_.line();
  std::string text;
  while (tokens_.is(TokenKind::kString)) text += tokens_.take().text;
  return constant(line, std::move(text));
}

bool ExpressionParser::tuple_ends(std::string_view end) const {
  return tokens_.is(TokenKind::kExpressionEnd) || tokens_.is(TokenKind::kStatementEnd) ||
         tokens_.is_operator(")") || (!end.empty() && tokens_.is_name(end));
}

ExpressionPtr ExpressionParser::tuple(bool conditional, bool parenthesized) {
  const int line = tokens_.line();
  std::vector<ExpressionPtr> items;
  bool comma = false;
  while (true) {
    if (!items.empty()) tokens_.expect_operator(",");
    if (tuple_ends("")) break;
    items.push_back(conditional ? condition() : disjunction());
    if (!tokens_.is_operator(",")) break;
    comma = true;
  }
  if (!comma && !items.empty()) return std::move(items[0]);
  if (!comma && !parenthesized) tokens_.unexpected("an expression");
  ExpressionPtr node = make(ExpressionKind::kTuple, line);
  for (ExpressionPtr& item : items) add(*node, std::move(item));
  return node;
}

ExpressionPtr ExpressionParser::list() {
  ExpressionPtr node = make(ExpressionKind::kList, tokens_.take().line);
  while (!tokens_.is_operator("]")) {
    if (!node->items.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("]")) break;
    add(*node, condition());
  }
  tokens_.expect_operator("]");
  return node;
}

ExpressionPtr ExpressionParser::dict() {
  ExpressionPtr node = make(ExpressionKind::kDict, tokens_.take().line);
  while (!tokens_.is_operator("}")) {
    if (!node->items.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("}")) break;
    add(*node, condition());
    tokens_.expect_operator(":");
    add(*node, condition());
  }
  tokens_.expect_operator("}");
  return node;
}

ExpressionPtr ExpressionParser::name_target() {
  const Token token = tokens_.expect(TokenKind::kName, "a name");
  static constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None"};
  if (std::find(std::begin(kReserved), std::end(kReserved), token.text) != std::end(kReserved))
    syntax_error(token.line, "cannot assign to " + token.text);
  ExpressionPtr node = make(ExpressionKind::kName, token.line);
  node->name = token.text;
  return node;
}

ExpressionPtr ExpressionParser::target(bool attributes, std::string_view end) {
  const Nesting nesting(*this);
  const auto one = [&]() -> ExpressionPtr {
    if (tokens_.skip_operator("(")) {
      ExpressionPtr inner = target(attributes, end);
      tokens_.expect_operator(")");
      return inner;
    }
    ExpressionPtr node = name_target();
    if (!attributes || !tokens_.skip_operator(".")) return node;
    const Token name = tokens_.expect(TokenKind::kName, "an attribute's name");
    node = make(ExpressionKind::kAttribute, name.line, std::move(node));
    node->name = name.text;
    return node;
  };
  ExpressionPtr first = one();
  if (!tokens_.is_operator(",")) return first;
  const int line = first->line;
  ExpressionPtr node = make(ExpressionKind::kTuple, line, std::move(first));
  while (tokens_.skip_operator(",")) {
    if (tuple_ends(end) || tokens_.is_operator("=")) break;
    add(*node, one());
  }
  return node;
}

}  // namespace ark::text::jinja
