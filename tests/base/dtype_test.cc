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

// A byte of FLOAT8E4M3FN as the standard defines it.
float f8e4m3_by_definition(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return NAN;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return code & 128 ? -size : size;
}

TEST(DType, EveryF8E4M3IsWhatTheStandardSaysAndRoundTrips) {
  for (int code = 0; code < 256; ++code) {
    const float value = f8e4m3_to_f32(static_cast<uint8_t>(code)), want = f8e4m3_by_definition(code);
    ASSERT_EQ(f32_to_f8e4m3(value), code);
    if (std::isnan(want))
      ASSERT_EQ(std::bit_cast<uint32_t>(value), code & 128 ? 0xffc00000u : 0x7fc00000u);
    else
      ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(want)) << code;
  }
}

TEST(DType, F8E4M3RoundsToNearestEvenAndSaturates) {
  for (int code = 0; code < 126; ++code) {
    const float low = f8e4m3_by_definition(code), high = f8e4m3_by_definition(code + 1);
    const float middle = (low + high) / 2;
    for (const int sign : {0, 128}) {
      const float one = sign ? -1.f : 1.f;
      EXPECT_EQ(f32_to_f8e4m3(one * std::nextafter(middle, 0.f)), sign | code);
      EXPECT_EQ(f32_to_f8e4m3(one * middle), sign | (code % 2 == 0 ? code : code + 1));
      EXPECT_EQ(f32_to_f8e4m3(one * std::nextafter(middle, 1e9f)), sign | (code + 1));
    }
  }
  for (const float large : {448.f, 449.f, 480.f, 1e30f, INFINITY}) {
    EXPECT_EQ(f32_to_f8e4m3(large), 0x7e);
    EXPECT_EQ(f32_to_f8e4m3(-large), 0xfe);
  }
  EXPECT_EQ(f32_to_f8e4m3(1e-30f), 0);
}

TEST(DType, NamesRoundTripAndTypesOfFewBitsPack) {
  EXPECT_EQ(dtype_from_name(name_of(DType::kBF16)), DType::kBF16);
  EXPECT_EQ(bytes_of(DType::kI4, 3), 2);
  EXPECT_EQ(bytes_of(DType::kU2, 9), 3);
  EXPECT_EQ(bytes_of(DType::kI4, int64_t{1} << 62), int64_t{1} << 61);
  EXPECT_EQ(bytes_of(DType::kF32, 3), 12);
  EXPECT_THROW(bytes_of(DType::kF32, int64_t{1} << 61), Error);
}

TEST(Error, EscapesWhatATerminalWouldObey) {
  EXPECT_EQ(escaped("a\x1b[2J\n\xff\xc3\xa9\xc2\x9b"), "a\\x1b[2J\\n\\xff\xc3\xa9\\xc2\\x9b");
  // Marks of direction, separators of lines and what is invisible; no letters.
  EXPECT_EQ(escaped("a\u202Eb\u2028\u200B\uFEFF\U000E0041\u4E2D\u200Bc"),
            "a\\xe2\\x80\\xaeb\\xe2\\x80\\xa8\\xe2\\x80\\x8b\\xef\\xbb\\xbf\\xf3\\xa0\\x81\\x81\u4E2D"
            "\\xe2\\x80\\x8bc");
  EXPECT_EQ(escaped(std::string(300, 'x'), 10), "xxxxxxxxxx...");
}

}  // namespace
}  // namespace ark
