#include "server/text/byte_level.h"

#include <array>

#include "server/text/unicode.h"

namespace ark::text {
namespace {

// Printable Latin-1 bytes stand for themselves, the other 68 follow from U+0100 on.
struct Alphabet {
  std::array<std::string, 256> chars;
  std::array<int, 0x144> bytes;  // -1: not of the alphabet
  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
      const char32_t c = printable ? static_cast<char32_t>(byte) : next++;
      append_utf8(chars[byte], c);
      bytes[c] = byte;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string bytes_to_chars(std::string_view bytes) {
  const Alphabet& table = alphabet();
  std::string out;
  out.reserve(bytes.size() * 2);
  for (char byte : bytes) out += table.chars[static_cast<unsigned char>(byte)];
  return out;
}

std::optional<std::string> chars_to_bytes(std::string_view token) {
  const Alphabet& table = alphabet();
  std::string out;
  for (std::size_t at = 0; at < token.size();) {
    const char32_t c = next_char(token, at);
    if (c >= table.bytes.size() || table.bytes[c] < 0) return std::nullopt;
    out += static_cast<char>(table.bytes[c]);
  }
  return out;
}

}  // namespace ark::text
