// A cursor over tokens, for the parsers.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "server/text/jinja/lexer.h"

namespace ark::text::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return current().line; }
  Token take() {
    Token token = current();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  bool is(TokenKind kind) const { return current().kind == kind; }
  bool is_operator(std::string_view text) const { return matches(current(), TokenKind::kOperator, text); }
  bool is_name(std::string_view text) const { return matches(current(), TokenKind::kName, text); }
  bool is_any_name(const std::vector<std::string_view>& texts) const {
    return is(TokenKind::kName) && std::ranges::find(texts, current().text) != texts.end();
  }
  static bool matches(const Token& token, TokenKind kind, std::string_view text) {
    return token.kind == kind && token.text == text;
  }

  bool skip_operator(std::string_view text) { return is_operator(text) && (take(), true); }
  bool skip_name(std::string_view text) { return is_name(text) && (take(), true); }
  void expect_operator(std::string_view text) {
    if (!skip_operator(text)) unexpected("'" + std::string(text) + "'");
  }
  void expect_name(std::string_view text) {
    if (!skip_name(text)) unexpected("'" + std::string(text) + "'");
  }
  Token expect(TokenKind kind, std::string_view what) {
    if (!is(kind)) unexpected(what);
    return take();
  }
  [[noreturn]] void unexpected(std::string_view wanted) const {
    syntax_error(line(),
                 "expected " + std::string(wanted) + ", found \"" + escaped(current().text, 60) + "\"");
  }

 private:
  std::vector<Token> tokens_;  // ends with kEnd
  std::size_t at_ = 0;
};

}  // namespace ark::text::jinja
