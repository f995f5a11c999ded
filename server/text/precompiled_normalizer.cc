// The map's bytes: uint32 size of the trie, the trie's units (uint32 each, little-endian, the "darts-clone"
// double array), then NUL-terminated replacements; a trie value is an offset into these.
#include <cstring>
#include <optional>
#include <vector>

#include "server/text/normalizer.h"
#include "server/text/unicode.h"

namespace ark::text {
namespace {

constexpr std::size_t kMaxGraphemeBytes = 6;  // longer clusters are mapped character by character

std::string decode_base64(const JsonView& json) {
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (char c : json.string()) {
    static constexpr std::string_view kAlphabet =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (c == '=') break;
    const std::size_t digit = kAlphabet.find(c);
    if (digit == std::string_view::npos) json.fail("not base64");
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    if ((count += 6) >= 8) out += static_cast<char>(bits >> (count -= 8) & 0xFF);
  }
  return out;
}

class Precompiled {
 public:
  explicit Precompiled(const JsonView& map) {
    const std::string bytes = decode_base64(map);
    std::uint32_t size = 0;
    if (bytes.size() >= 4) std::memcpy(&size, bytes.data(), 4);
    if (bytes.size() < 4 || size % 4 != 0 || size > bytes.size() - 4)
      map.fail("the trie's size does not fit the map");
    units_.resize(size / 4);
    std::memcpy(units_.data(), bytes.data() + 4, size);
    replacements_ = bytes.substr(4 + size);
    if (!is_valid_utf8(replacements_)) map.fail("replacements are not valid UTF-8");
  }

  void operator()(std::string& text, Budget& budget) const {
    budget.charge_bytes(2 * text.size());
    std::string out;
    for (std::string_view cluster : graphemes(text)) {
      if (cluster.size() < kMaxGraphemeBytes) {
        if (const auto mapped = lookup(cluster)) {
          budget.charge_bytes(mapped->size());
          out += *mapped;
          continue;
        }
      }
      for (std::size_t at = 0; at < cluster.size();) {
        const std::size_t begin = at;
        next_char(cluster, at);
        const std::string_view character = cluster.substr(begin, at - begin);
        const std::string_view mapped = lookup(character).value_or(character);
        budget.charge_bytes(mapped.size());
        out += mapped;
      }
    }
    text = std::move(out);
  }

 private:
  // The replacement of the shortest prefix of `key` that the trie holds.
  std::optional<std::string_view> lookup(std::string_view key) const {
    if (units_.empty()) return std::nullopt;
    std::size_t node = offset(units_[0]);
    for (char c : key) {
      const unsigned char byte = static_cast<unsigned char>(c);
      if (byte == 0) return std::nullopt;
      node ^= byte;
      if (node >= units_.size() || (units_[node] & 0x800000FF) != byte) return std::nullopt;
      const std::uint32_t unit = units_[node];
      node ^= offset(unit);
      if (!(unit >> 8 & 1)) continue;
      if (node >= units_.size()) return std::nullopt;
      const std::size_t begin = units_[node] & 0x7FFFFFFF;
      if (begin >= replacements_.size()) return std::nullopt;
      return std::string_view(replacements_).substr(begin, replacements_.find('\0', begin) - begin);
    }
    return std::nullopt;
  }

  static std::size_t offset(std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace

Normalizer::Step parse_precompiled_normalizer(const JsonView& json) {
  return Precompiled(json.at("precompiled_charsmap"));
}

}  // namespace ark::text
