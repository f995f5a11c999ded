// Fragment layouts against the formulas of the PTX ISA (sections on mma.m16n8k16 and ldmatrix), and
// conversions of 16-bit floats against the definition of rounding to nearest even.
#include "tests/emulator/kernels/fragments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/emulator/emulator.h"

namespace ark::test {
namespace {

using dev::u16;
using dev::u32;

float value(u16 bits, bool is_f16) { return is_f16 ? to_f32(dev::f16{bits}) : to_f32(dev::bf16{bits}); }

// PTX: "groupID = laneid >> 2, threadID_in_group = laneid % 4".
float element_of_a(const Fragments& f, int tile, int row, int column, bool is_f16) {
  const int lane = row % 8 * 4 + column % 8 / 2;
  const int i = (row < 8 ? 0 : 1) + (column < 8 ? 0 : 2);
  return value(static_cast<u16>(f.a[lane][tile][i] >> (column % 2 * 16)), is_f16);
}
float element_of_b(const Fragments& f, int tile, int row, int column, bool is_f16) {
  const int lane = column * 4 + row % 8 / 2;
  return value(static_cast<u16>(f.b[lane][tile][row < 8 ? 0 : 1] >> (row % 2 * 16)), is_f16);
}

void run(Fragments& host, bool is_f16) {
  emulator::Machine machine({.schedule = emulator::Schedule::kRandom});
  std::byte* memory = machine.memory().allocate(sizeof host, 0, "fragments");
  std::memcpy(memory, &host, sizeof host);
  machine.memory().initialise(memory, sizeof host);
  const FragmentParameters p{reinterpret_cast<Fragments*>(memory), is_f16};
  emulator::LaunchRequest request;
  request.shared_bytes = 1024;
  request.kernel = [](const void* q) { run_fragments(*static_cast<const FragmentParameters*>(q)); };
  request.parameter.resize(sizeof p);
  std::memcpy(request.parameter.data(), &p, sizeof p);
  machine.launch(std::move(request));
  machine.run();
  std::memcpy(&host, memory, sizeof host);
}

TEST(Fragments, MmaFollowsPtx) {
  std::mt19937 random(1);
  for (bool is_f16 : {true, false}) {
    Fragments before{};
    auto number = [&] {  // small integers: sums are exact in any order
      const float v = static_cast<float>(static_cast<int>(random() % 17) - 8);
      return is_f16 ? dev::to_f16(v).bits : dev::to_bf16(v).bits;
    };
    auto pair = [&] { return number() | static_cast<u32>(number()) << 16; };
    for (int lane = 0; lane < 32; lane++) {
      for (int i = 0; i < 8; i++) before.a[lane][i / 4][i % 4] = pair();
      for (int i = 0; i < 6; i++) before.b[lane][i / 2][i % 2] = pair();
      for (int i = 0; i < 24; i++)
        before.d[lane][i / 12][i / 4 % 3][i % 4] = static_cast<float>(random() % 100);
    }
    Fragments after = before;
    run(after, is_f16);
    for (int i = 0; i < 2; i++) {
      for (int j = 0; j < 3; j++) {
        for (int row = 0; row < 16; row++) {
          for (int column = 0; column < 8; column++) {
            const int lane = row % 8 * 4 + column / 2, c = column % 2 + (row < 8 ? 0 : 2);
            float sum = before.d[lane][i][j][c];
            for (int k = 0; k < 16; k++) {
              sum += element_of_a(before, i, row, k, is_f16) * element_of_b(before, j, k, column, is_f16);
              if (i == 1 && j == 2) {
                sum += element_of_a(before, 0, row, k, is_f16) * element_of_b(before, 1, k, column, is_f16);
              }
            }
            ASSERT_EQ(after.d[lane][i][j][c], sum) << i << j << " " << row << "," << column;
          }
        }
      }
    }
  }
}

TEST(Fragments, LdmatrixFollowsPtx) {
  Fragments f{};
  for (int i = 0; i < 256; i++) (&f.tile[0][0][0])[i] = static_cast<u16>(i * 7 + 1);
  run(f, true);
  for (int lane = 0; lane < 32; lane++) {
    const int row = lane / 4, column = lane % 4 * 2;
    for (int m = 0; m < 4; m++) {
      const auto& t = f.tile[m];
      EXPECT_EQ(f.loaded[0][lane][m], t[row][column] | static_cast<u32>(t[row][column + 1]) << 16);
      EXPECT_EQ(f.loaded[1][lane][m], t[column][row] | static_cast<u32>(t[column + 1][row]) << 16);
    }
  }
}

// Of the two neighbours of |v| on the grid of magnitudes, the nearer one; the even one if both are as near.
// Magnitudes of both formats are ordered as their bits.
u16 nearest(float v, bool is_f16) {
  const u16 sign = std::signbit(v) ? 0x8000 : 0;
  const u16 infinity = is_f16 ? 0x7c00 : 0x7f80;
  const double magnitude = std::fabs(static_cast<double>(v));
  u16 low = 0;
  for (int bit = 14; bit >= 0; bit--) {
    const u16 more = static_cast<u16>(low | 1 << bit);
    if (more <= infinity && value(more, is_f16) <= magnitude) low = more;
  }
  if (low == infinity) return sign | low;
  const u16 high = low + 1;
  const double below = value(low, is_f16);
  // Rounding overflows where the next number of the format, had it one more exponent, would be nearer.
  const double above = high == infinity ? std::ldexp(1.0, is_f16 ? 16 : 128) : value(high, is_f16);
  const double to_low = magnitude - below, to_high = above - magnitude;
  const bool up = to_high < to_low || (to_high == to_low && low % 2 == 1);
  return sign | (up ? high : low);
}

TEST(Halves, ConvertExactly) {
  for (u32 bits = 0; bits < 0x10000; bits++) {
    const auto h = static_cast<u16>(bits);
    const float f = to_f32(dev::f16{h}), b = to_f32(dev::bf16{h});
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    double expected = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) expected = fraction ? NAN : INFINITY;
    if (h & 0x8000) expected = -expected;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(f));
      ASSERT_EQ(dev::to_f16(f).bits, 0x7fff);
    } else {
      ASSERT_EQ(f, expected);
      ASSERT_EQ(std::signbit(f), std::signbit(expected));
      ASSERT_EQ(dev::to_f16(f).bits, h);
    }
    u32 wide;
    std::memcpy(&wide, &b, 4);
    ASSERT_EQ(wide, bits << 16);
    ASSERT_EQ(dev::to_bf16(b).bits, std::isnan(b) ? 0x7fff : h);
  }
}

TEST(Halves, RoundToNearestEven) {
  std::mt19937 random(2);
  auto check = [](float v) {
    if (std::isnan(v)) return;
    ASSERT_EQ(dev::to_f16(v).bits, nearest(v, true)) << v;
    ASSERT_EQ(dev::to_bf16(v).bits, nearest(v, false)) << v;
  };
  for (bool is_f16 : {true, false}) {
    for (u32 bits = 0; bits < 0x10000; bits++) {  // each number's border to the next, and either side of it
      const float low = value(static_cast<u16>(bits), is_f16),
                  high = value(static_cast<u16>(bits + 1), is_f16);
      const auto middle = static_cast<float>((static_cast<double>(low) + high) / 2);
      for (float v : {middle, std::nextafter(middle, -INFINITY), std::nextafter(middle, INFINITY)}) check(v);
    }
  }
  for (int i = 0; i < 300'000; i++) check(dev::as_f32(static_cast<u32>(random())));
  for (float v : {65504.0f, 65519.99f, 65520.0f, 1e30f, 3.4e38f, 0x1p-25f, 0x1.000002p-25f, 0x1p-149f}) {
    check(v);
    check(-v);
  }
  EXPECT_EQ(dev::pack_f16(1.0f, 2.0f), 0x40003c00u);
  EXPECT_EQ(dev::pack_bf16(1.0f, 2.0f), 0x40003f80u);
}

}  // namespace
}  // namespace ark::test
