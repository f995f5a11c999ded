#include "base/error.h"

#include <cstdio>
#include <cstring>

#include "base/utf8.h"

namespace ark {

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

// Characters of three bytes that end lines, turn the direction of what follows, or cannot be seen: U+061C is two, and
// harmless alone; U+200B to 200F, 2028 to 202E, 2060 to 206F, FEFF.
static bool is_invisible(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned code = (byte(0) & 0xFu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
  return (code >= 0x200B && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF;
}

std::string escaped(std::string_view text, std::size_t limit) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= limit) return out + "...";
    const unsigned char c = static_cast<unsigned char>(text[0]);
    const std::size_t n = utf8_length(text);
    const bool c1_control = n == 2 && c == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0;
    const bool misleads = n == 3 && is_invisible(text);
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '"' || c == '\\')
      out += {'\\', static_cast<char>(c)};
    else if (c < 0x20 || c == 0x7F || n == 0 || c1_control || misleads) {
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
