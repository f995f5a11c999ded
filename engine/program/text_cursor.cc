#include "engine/program/text_cursor.h"

#include <cstdio>

namespace ark {

std::string quote(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      char hex[5];
      std::snprintf(hex, sizeof hex, "\\x%02x", byte);
      result += hex;
    } else {
      result += c;
    }
  }
  return result + '"';
}

Expr TextCursor::expression(std::string_view end) {
  const std::string text = until(end);
  try {
    return Expr::parse(text);
  } catch (const Error& e) {
    throw Error(Code::kInvalidArgument, "plan, line " + std::to_string(number_) + ": " + e.what());
  }
}

std::string TextCursor::quoted() {
  if (!peek("\"")) fail("expected a quoted name");
  std::string result;
  std::size_t i = 1;
  while (i < rest_.size() && rest_[i] != '"') {
    if (rest_[i] == '\\' && i + 3 < rest_.size() && rest_[i + 1] == 'x') {
      const std::string hex(rest_.substr(i + 2, 2));
      result += static_cast<char>(std::strtol(hex.c_str(), nullptr, 16));
      i += 4;
      continue;
    }
    if (rest_[i] == '\\') ++i;
    if (i < rest_.size()) result += rest_[i++];
  }
  if (i >= rest_.size()) fail("unclosed name");
  drop_to(rest_.data() + i + 1);
  return result;
}

}  // namespace ark
