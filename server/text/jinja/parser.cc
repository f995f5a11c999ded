// Tokens -> syntax tree.
#include "base/error.h"
#include "server/text/jinja/expression_parser.h"

namespace ark::text::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)), expressions_(tokens_) {}

  Block run() {
    Block block = body({});
    if (!tokens_.is(TokenKind::kEnd)) tokens_.unexpected("the end of the template");
    expressions_.refuse_unknown_names();
    return block;
  }

 private:
  using Ends = std::vector<std::string_view>;

  static StatementPtr make(StatementKind kind, int line) {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = line;
    return statement;
  }

  // Statements up to a tag that begins with one of `ends`, of which "{%" has been read when it returns.
  Block body(const Ends& ends) {
    if (++nesting_ > kMaxDepth / 2)
      syntax_error(tokens_.line(), "blocks are nested deeper than " + std::to_string(kMaxDepth / 2));
    Block block;
    while (!tokens_.is(TokenKind::kEnd)) {
      const int line = tokens_.line();
      if (tokens_.is(TokenKind::kText)) {
        block.push_back(make(StatementKind::kText, line));
        block.back()->name = tokens_.take().text;
      } else if (tokens_.is(TokenKind::kExpressionBegin)) {
        tokens_.take();
        block.push_back(make(StatementKind::kOutput, line));
        block.back()->expression = expressions_.tuple();
        tokens_.expect(TokenKind::kExpressionEnd, "'}}'");
      } else {
        tokens_.expect(TokenKind::kStatementBegin, "text or a tag");
        if (tokens_.is_any_name(ends)) break;
        block.push_back(statement());
        tokens_.expect(TokenKind::kStatementEnd, "'%}'");
      }
    }
    if (!ends.empty() && tokens_.is(TokenKind::kEnd))
      tokens_.unexpected("'" + std::string(ends.back()) + "'");
    --nesting_;
    return block;
  }

  // The rest of the opening tag, and the block behind it.
  Block open(const Ends& ends) {
    tokens_.skip_operator(":");
    tokens_.expect(TokenKind::kStatementEnd, "'%}'");
    return body(ends);
  }

  Block closed(std::string_view end) {
    Block block = open({end});
    tokens_.expect_name(end);
    return block;
  }

  StatementPtr statement() {
    const Token token = tokens_.expect(TokenKind::kName, "a statement");
    const int line = token.line;
    if (token.text == "for") return for_statement(line);
    if (token.text == "if") return if_statement(line);
    if (token.text == "set") return set_statement(line);
    if (token.text == "macro") return macro_statement(line);
    if (token.text == "call") return call_statement(line);
    if (token.text == "filter") return filter_statement(line);
    if (token.text == "with") return with_statement(line);
    if (token.text == "generation") return scope_statement(line, "endgeneration");
    if (token.text == "break" || token.text == "continue") {
      if (loops_ == 0) syntax_error(line, token.text + " outside of a loop");
      return make(token.text == "break" ? StatementKind::kBreak : StatementKind::kContinue, line);
    }
    syntax_error(line, "unknown statement " + escaped(token.text, 60));
  }

  StatementPtr for_statement(int line) {
    StatementPtr node = make(StatementKind::kFor, line);
    node->target = expressions_.target(false, "in");
    tokens_.expect_name("in");
    node->expression = expressions_.tuple(false);
    if (tokens_.skip_name("if")) node->test = expressions_.expression();
    ++loops_;
    node->body = open({"else", "endfor"});
    --loops_;
    if (tokens_.skip_name("else")) node->orelse = open({"endfor"});
    tokens_.expect_name("endfor");
    return node;
  }

  StatementPtr if_statement(int line) {
    StatementPtr node = make(StatementKind::kIf, line);
    const ExpressionParser::Optional optional(expressions_);
    do {
      node->values.push_back(expressions_.tuple(false));
      node->branches.push_back(open({"elif", "else", "endif"}));
    } while (tokens_.skip_name("elif"));
    if (tokens_.skip_name("else")) node->orelse = open({"endif"});
    tokens_.expect_name("endif");
    return node;
  }

  StatementPtr set_statement(int line) {
    StatementPtr node = make(StatementKind::kSet, line);
    node->target = expressions_.target(true);
    if (tokens_.skip_operator("=")) {
      node->expression = expressions_.tuple();
      return node;
    }
    node->kind = StatementKind::kSetBlock;
    node->expression = expressions_.filters(nullptr);
    node->body = closed("endset");
    return node;
  }

  void signature(Statement& node) {
    tokens_.expect_operator("(");
    while (!tokens_.is_operator(")")) {
      if (!node.parameters.empty()) tokens_.expect_operator(",");
      const ExpressionPtr name = expressions_.name_target();
      node.parameters.push_back(name->name);
      if (tokens_.skip_operator("="))
        node.defaults.push_back(expressions_.expression());
      else if (!node.defaults.empty())
        syntax_error(name->line, "a parameter without default behind one with a default");
    }
    tokens_.expect_operator(")");
  }

  // A macro's or call's body is no part of the loop around it.
  Block function_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Block block = closed(end);
    loops_ = loops;
    return block;
  }

  StatementPtr macro_statement(int line) {
    StatementPtr node = make(StatementKind::kMacro, line);
    node->name = expressions_.name_target()->name;
    signature(*node);
    node->body = function_body("endmacro");
    return node;
  }

  StatementPtr call_statement(int line) {
    StatementPtr node = make(StatementKind::kCall, line);
    if (tokens_.is_operator("(")) signature(*node);
    node->expression = expressions_.expression();
    if (node->expression->kind != ExpressionKind::kCall) syntax_error(line, "expected a call");
    node->body = function_body("endcall");
    return node;
  }

  StatementPtr filter_statement(int line) {
    StatementPtr node = make(StatementKind::kFilter, line);
    node->expression = expressions_.filters(expressions_.filter_call(nullptr));
    node->body = closed("endfilter");
    return node;
  }

  StatementPtr with_statement(int line) {
    StatementPtr node = make(StatementKind::kWith, line);
    while (!tokens_.is(TokenKind::kStatementEnd)) {
      if (!node->targets.empty()) tokens_.expect_operator(",");
      node->targets.push_back(expressions_.target(false));
      tokens_.expect_operator("=");
      node->values.push_back(expressions_.expression());
    }
    node->body = closed("endwith");
    return node;
  }

  StatementPtr scope_statement(int line, std::string_view end) {
    StatementPtr node = make(StatementKind::kScope, line);
    node->body = closed(end);
    return node;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int nesting_ = 0, loops_ = 0;
};

}  // namespace

Block parse_template(std::string_view source) { return Parser(source).run(); }

}  // namespace ark::text::jinja
