#include "base/utf8.h"

namespace ark {

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

std::optional<uint32_t> control_at(std::string_view text) {
  static constexpr struct {
    uint32_t first, last;
  } kControls[] = {{0, 0x1F},        {0x7F, 0x9F},     {0x61C, 0x61C},   {0x200B, 0x200F},
                   {0x2028, 0x202E}, {0x2060, 0x206F}, {0xFEFF, 0xFEFF}, {0xE0000, 0xE007F}};
  const std::size_t n = utf8_length(text);
  if (n == 0) return std::nullopt;
  auto point = static_cast<unsigned char>(text[0]) & (n == 1 ? 0x7Fu : 0xFFu >> (n + 1));
  for (std::size_t i = 1; i < n; ++i) point = point << 6 | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  for (const auto& [first, last] : kControls)
    if (point >= first && point <= last) return point;
  return std::nullopt;
}

}  // namespace ark
