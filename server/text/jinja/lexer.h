// Template source -> tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ark::text::jinja {

enum class TokenKind {
  kText,  // between tags
  kExpressionBegin,
  kExpressionEnd,
  kStatementBegin,
  kStatementEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  std::string text;  // of kString: decoded
  int line;
};

// As Jinja with trim_blocks and lstrip_blocks, which is how chat templates are read: a line break behind a
// statement goes, and so do blanks between a line's start and a statement. Throws kBadModel (syntax_error).
std::vector<Token> tokenize(std::string_view source);

[[noreturn]] void syntax_error(int line, const std::string& message);

}  // namespace ark::text::jinja
