#include "server/text/jinja/token_stream.h"

#include <algorithm>

#include "base/error.h"

namespace ark::text::jinja {

bool TokenStream::is_any_name(const std::vector<std::string_view>& texts) const {
  return is(TokenKind::kName) && std::find(texts.begin(), texts.end(), current().text) != texts.end();
}

void TokenStream::expect_operator(std::string_view text) {
  if (!skip_operator(text)) unexpected("'" + std::string(text) + "'");
}

void TokenStream::expect_name(std::string_view text) {
  if (!skip_name(text)) unexpected("'" + std::string(text) + "'");
}

Token TokenStream::expect(TokenKind kind, std::string_view what) {
  if (!is(kind)) unexpected(what);
  return take();
}

void TokenStream::unexpected(std::string_view wanted) const {
  syntax_error(line(), "expected " + std::string(wanted) + ", found \"" + escaped(current().text, 60) + "\"");
}

}  // namespace ark::text::jinja
