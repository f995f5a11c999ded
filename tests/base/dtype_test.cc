#include "base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/error.h"

namespace ark {
namespace {

TEST(DType, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
    else
      ASSERT_EQ(f32_to_f16(value), bits) << value;
  }
}

#ifdef __FLT16_MAX__  // clang 14 has no _Float16 for x86
TEST(DType, HalfRoundsToNearestEven) {
  // _Float16 conversions of the compiler are the oracle.
  for (uint32_t i = 0; i < 1u << 20; ++i) {
    const float value = std::bit_cast<float>(i * 4099u);
    if (std::isnan(value)) continue;
    ASSERT_EQ(f32_to_f16(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << value;
  }
}
#endif

TEST(DType, NamesRoundTripAndFourBitTypesPack) {
  EXPECT_EQ(dtype_from_name(name_of(DType::kBF16)), DType::kBF16);
  EXPECT_EQ(bytes_of(DType::kI4, 3), 2);
  EXPECT_EQ(bytes_of(DType::kI4, int64_t{1} << 62), int64_t{1} << 61);
  EXPECT_EQ(bytes_of(DType::kF32, 3), 12);
  EXPECT_THROW(bytes_of(DType::kF32, int64_t{1} << 61), Error);
}

TEST(Error, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(escaped("a\x1b[2J\n\xff\xc3\xa9\xc2\x9b"), "a\\x1b[2J\\n\\xff\xc3\xa9\\xc2\\x9b");
  EXPECT_EQ(escaped(std::string(300, 'x'), 10), "xxxxxxxxxx...");
}

}  // namespace
}  // namespace ark
