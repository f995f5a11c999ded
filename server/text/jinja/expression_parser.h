// Parses expressions: Jinja's grammar by recursive descent.
#pragma once

#include <initializer_list>
#include <string_view>

#include "server/text/jinja/ast.h"
#include "server/text/jinja/token_stream.h"

namespace ark::text::jinja {

struct Builtin;

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExpressionPtr expression() { return condition(); }
  // a, b, c: a tuple if there is a comma. `conditional`: whether "x if y else z" is read.
  ExpressionPtr tuple(bool conditional = true, bool parenthesized = false);
  // What can be assigned to: names, tuples of names, and namespace attributes if allowed.
  ExpressionPtr target(bool attributes, std::string_view end = "");
  ExpressionPtr name_target();
  // The filters after `input` (which may be null): | a | b(...)
  ExpressionPtr filters(ExpressionPtr input);
  ExpressionPtr filter_call(ExpressionPtr input);  // name(...), the | being read
  ExpressionPtr unary(bool with_filters = true);

  // Filters and tests that do not exist are an error here, unless they stand in a branch that may never run
  // (in an Optional): as in Jinja those fail when they are reached.
  void refuse_unknown_names() const;
  class Optional {
   public:
    explicit Optional(ExpressionParser& parser) : parser_(parser), known_(parser.unknown_.size()) {}
    ~Optional() { parser_.unknown_.resize(known_); }

   private:
    ExpressionParser& parser_;
    std::size_t known_;
  };

 private:
  // Counts how deep calls are nested, as the tree's depth does not while it is built.
  struct Nesting {
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.nesting_; }
    ExpressionParser& parser_;
  };

  ExpressionPtr make(ExpressionKind kind, int line, ExpressionPtr first = nullptr,
                     ExpressionPtr second = nullptr, ExpressionPtr third = nullptr) const;
  ExpressionPtr constant(int line, Value value) const;
  static void add(Expression& parent, ExpressionPtr child);
  static void grow(Expression& parent, const Expression* child);

  ExpressionPtr condition();
  struct Operator {
    std::string_view text;
    ExpressionKind kind;
    Arithmetic arithmetic = Arithmetic::kAdd;
  };
  ExpressionPtr chain(std::initializer_list<Operator> operators, TokenKind kind,
                      ExpressionPtr (ExpressionParser::*operand)());
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr factor() { return unary(); }
  ExpressionPtr primary();
  ExpressionPtr name_or_constant();
  ExpressionPtr number();
  ExpressionPtr strings();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr base);
  ExpressionPtr filters_and_tests(ExpressionPtr base);
  ExpressionPtr attribute(ExpressionPtr base);
  ExpressionPtr subscript(ExpressionPtr base);
  ExpressionPtr call(ExpressionPtr base);
  ExpressionPtr test(ExpressionPtr base);
  void arguments(Expression& call);
  std::string name_of(const char* kind, const Builtin* find(std::string_view));
  bool tuple_ends(std::string_view end) const;

  TokenStream& tokens_;
  int nesting_ = 0;
  std::vector<Token> unknown_;  // "no filter named 'x'", with the line
};

}  // namespace ark::text::jinja
