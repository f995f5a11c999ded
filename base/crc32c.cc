#include "base/crc32c.h"

#include <array>
#include <cstring>

namespace ark {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // lowest power in the highest bit

// What one byte does to the sum.
constexpr std::array<uint32_t, 256> kTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? kPolynomial : 0);
    table[byte] = sum;
  }
  return table;
}();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(std::span<const std::byte> bytes) {
  uint64_t sum = ~uint32_t{0};
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    sum = __builtin_ia32_crc32di(sum, word);
  }
  auto rest = static_cast<uint32_t>(sum);
  for (; at < bytes.size(); ++at)
    rest = __builtin_ia32_crc32qi(rest, std::to_integer<unsigned char>(bytes[at]));
  return ~rest;
}
#endif

}  // namespace

uint32_t crc32c_by_table(std::span<const std::byte> bytes) {
  uint32_t sum = ~uint32_t{0};
  for (const std::byte byte : bytes) sum = sum >> 8 ^ kTable[(sum ^ std::to_integer<uint32_t>(byte)) & 0xff];
  return ~sum;
}

uint32_t crc32c(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return by_instruction(bytes);
#endif
  return crc32c_by_table(bytes);
}

}  // namespace ark
