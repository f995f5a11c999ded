// What follows an operand: attributes, subscripts, calls, filters and tests.

#include "base/error.h"
#include "server/text/jinja/builtins.h"
#include "server/text/jinja/expression_parser.h"

namespace ark::text::jinja {

ExpressionPtr ExpressionParser::postfix(ExpressionPtr base) {
  while (true) {
    if (tokens_.is_operator("."))
      base = attribute(std::move(base));
    else if (tokens_.is_operator("["))
      base = subscript(std::move(base));
    else if (tokens_.is_operator("("))
      base = call(std::move(base));
    else
      return base;
  }
}

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr base) {
  while (true) {
    if (tokens_.is_operator("|"))
      base = filters(std::move(base));
    else if (tokens_.is_name("is"))
      base = test(std::move(base));
    else if (tokens_.is_operator("("))
      base = call(std::move(base));
    else
      return base;
  }
}

ExpressionPtr ExpressionParser::attribute(ExpressionPtr base) {
  const int line = tokens_.take().line;
  if (tokens_.is(TokenKind::kInteger))
    return make(ExpressionKind::kSubscript, line, std::move(base), number());
  ExpressionPtr node = make(ExpressionKind::kAttribute, line, std::move(base));
  node->name = tokens_.expect(TokenKind::kName, "a name or number").text;
  return node;
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr base) {
  const int line = tokens_.take().line;
  const auto bound = [&]() -> ExpressionPtr {
    if (tokens_.is_operator(":") || tokens_.is_operator("]")) return constant(line, Value());
    return condition();
  };
  const bool slice = tokens_.is_operator(":");
  ExpressionPtr first = slice ? constant(line, Value()) : condition();
  if (!slice && tokens_.is_operator(",")) {
    ExpressionPtr key = make(ExpressionKind::kTuple, line, std::move(first));
    while (tokens_.skip_operator(",")) add(*key, condition());
    tokens_.expect_operator("]");
    return make(ExpressionKind::kSubscript, line, std::move(base), std::move(key));
  }
  if (!tokens_.skip_operator(":")) {
    tokens_.expect_operator("]");
    return make(ExpressionKind::kSubscript, line, std::move(base), std::move(first));
  }
  ExpressionPtr node = make(ExpressionKind::kSlice, line, std::move(base), std::move(first), bound());
  add(*node, tokens_.skip_operator(":") ? bound() : constant(line, Value()));
  tokens_.expect_operator("]");
  return node;
}

ExpressionPtr ExpressionParser::call(ExpressionPtr base) {
  ExpressionPtr node = make(ExpressionKind::kCall, tokens_.line(), std::move(base));
  arguments(*node);
  return node;
}

void ExpressionParser::arguments(Expression& call) {
  tokens_.expect_operator("(");
  bool first = true;
  while (!tokens_.is_operator(")")) {
    if (!std::exchange(first, false)) tokens_.expect_operator(",");
    if (tokens_.is_operator(")")) break;
    const int line = tokens_.line();
    if (tokens_.skip_operator("**")) {
      if (call.double_star) syntax_error(line, "a call takes one ** argument");
      call.double_star = condition();
      grow(call, call.double_star.get());
    } else if (call.double_star) {
      syntax_error(line, "** must be a call's last argument");
    } else if (tokens_.skip_operator("*")) {
      if (call.star) syntax_error(line, "a call takes one * argument");
      call.star = condition();
      grow(call, call.star.get());
    } else if (tokens_.is(TokenKind::kName) &&
               TokenStream::matches(tokens_.ahead(), TokenKind::kOperator, "=")) {
      const std::string name = tokens_.take().text;
      tokens_.take();
      call.keywords.emplace_back(name, condition());
      grow(call, call.keywords.back().second.get());
    } else {
      if (!call.keywords.empty() || call.star)
        syntax_error(line, "a positional argument behind a keyword or * argument");
      add(call, condition());
    }
  }
  tokens_.expect_operator(")");
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr input) {
  while (tokens_.skip_operator("|")) input = filter_call(std::move(input));
  return input;
}

// The name of a filter or test, dots included; noted as unknown if it does not exist.
std::string ExpressionParser::name_of(const char* kind, const Builtin* find(std::string_view)) {
  const Token first = tokens_.expect(TokenKind::kName, std::string("a ") + kind + "'s name");
  std::string name = first.text;
  while (tokens_.skip_operator(".")) name += "." + tokens_.expect(TokenKind::kName, "a name").text;
  if (!find(name))
    unknown_.push_back(
        {TokenKind::kName, std::string("no ") + kind + " named '" + escaped(name, 60) + "'", first.line});
  return name;
}

ExpressionPtr ExpressionParser::filter_call(ExpressionPtr input) {
  ExpressionPtr node = make(ExpressionKind::kFilter, tokens_.line());
  add(*node, std::move(input));
  node->name = name_of("filter", find_filter);
  if (tokens_.is_operator("(")) arguments(*node);
  return node;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr base) {
  const int line = tokens_.take().line;
  const bool negated = tokens_.skip_name("not");
  ExpressionPtr node = make(ExpressionKind::kTest, line, std::move(base));
  node->name = name_of("test", find_test);
  const bool literal = tokens_.is(TokenKind::kString) || tokens_.is(TokenKind::kInteger) ||
                       tokens_.is(TokenKind::kFloat) || tokens_.is_operator("[") || tokens_.is_operator("{");
  if (tokens_.is_operator("(")) {
    arguments(*node);
  } else if (literal || (tokens_.is(TokenKind::kName) && !tokens_.is_any_name({"else", "or", "and"}))) {
    if (tokens_.is_name("is")) syntax_error(line, "tests cannot be chained with is");
    add(*node, postfix(primary()));
  }
  return negated ? make(ExpressionKind::kNot, line, std::move(node)) : std::move(node);
}

}  // namespace ark::text::jinja
