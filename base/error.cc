#include "base/error.h"

#include <cstdio>
#include <cstring>

namespace ark {
namespace {

// Length of the valid UTF-8 sequence at the front of `text` (RFC 3629: no overlongs, no surrogates), or 0.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < n) return 0;
  for (std::size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const unsigned second = byte(1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
      (lead == 0xF4 && second > 0x8F))
    return 0;
  return n;
}

}  // namespace

int Error::exit_code() const {
  switch (code_) {
    case Code::kUsage:
    case Code::kInvalidArgument:
      return 64;
    case Code::kBadModel:
    case Code::kUnsupported:
      return 65;
    case Code::kNotFound:
      return 66;
    case Code::kExhausted:
    case Code::kUnavailable:
      return 69;
    case Code::kInternal:
      return 70;
    case Code::kOs:
      return 71;
  }
  return 70;
}

void check_failed(const char* file, int line, const std::string& message) {
  const char* slash = std::strrchr(file, '/');
  throw Error(Code::kInternal,
              std::string(slash ? slash + 1 : file) + ":" + std::to_string(line) + ": " + message);
}

std::string escaped(std::string_view text, std::size_t limit) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= limit) return out + "...";
    const unsigned char c = static_cast<unsigned char>(text[0]);
    const std::size_t n = utf8_length(text);
    const bool c1_control = n == 2 && c == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0;
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '"' || c == '\\')
      out += {'\\', static_cast<char>(c)};
    else if (c < 0x20 || c == 0x7F || n == 0 || c1_control) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\x%02x", c);
      out += buffer;
    } else {
      out += text.substr(0, n);
      text.remove_prefix(n);
      continue;
    }
    text.remove_prefix(1);
  }
  return out;
}

}  // namespace ark
