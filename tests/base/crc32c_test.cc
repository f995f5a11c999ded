#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace ark {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// RFC 3720, appendix B.4, and the polynomial's usual check value.
TEST(Crc32c, GivesThePublishedSums) {
  std::vector<std::byte> ascending(32);
  for (int i = 0; i < 32; ++i) ascending[static_cast<std::size_t>(i)] = static_cast<std::byte>(i);
  const std::pair<std::vector<std::byte>, uint32_t> published[] = {
      {{}, 0},
      {std::vector<std::byte>(32), 0x8a9136aa},
      {std::vector<std::byte>(32, std::byte{0xff}), 0x62a8ab43},
      {ascending, 0x46dd794e},
      {bytes_of("123456789"), 0xe3069283},
  };
  for (const auto& [bytes, sum] : published) {
    EXPECT_EQ(crc32c(bytes), sum);
    EXPECT_EQ(crc32c_by_table(bytes), sum);
  }
}

TEST(Crc32c, IsTheSameWithAndWithoutTheInstruction) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(4100);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t from = 0; from < 9; ++from)
    for (const std::size_t size : {1, 7, 8, 9, 63, 1000, 4090}) {
      const std::span part = std::span(bytes).subspan(from, size);
      EXPECT_EQ(crc32c(part), crc32c_by_table(part)) << from << " " << size;
    }
}

}  // namespace
}  // namespace ark
