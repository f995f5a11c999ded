// What sampling needs of f64, and its noise: the same numbers as engine/cpu/sampler.cc but for the last bit
// of exp and log.
#pragma once

#include "engine/cuda/bodies/math.h"

namespace ark::cuda {

// ---- f64 functions: exp and log to about 1 ulp on normal results; enough for weights and noise

ARK_DEVICE double from_bits(u64 bits) { return __builtin_bit_cast(double, bits); }
ARK_DEVICE u64 to_bits(double v) { return __builtin_bit_cast(u64, v); }

// log2(e); ln 2 in two parts, of which the first has 21 low bits of 0, so that n times it is exact.
inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2High = 0.693147180369123816490, kLn2Low = 1.90821492927058770002e-10;
inline constexpr double kLn2 = 0.6931471805599453, kSqrt2 = 1.4142135623730951;
// IEEE 754 binary64.
inline constexpr int kFractionBits = 52, kExponentBias = 1023;
inline constexpr u64 kFraction = (u64{1} << kFractionBits) - 1, kOne = u64{kExponentBias} << kFractionBits;

// x <= 0; below -700, shortly before results are no longer normal: 0.
ARK_APART double exp_f64(double x) {
  if (!(x > -700.0)) return 0.0;
  const double n = static_cast<double>(static_cast<i64>(x * kLog2E - 0.5));
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = 1.0, term = 1.0;
  ARK_ROLLED
  for (int i = 1; i <= 14; ++i) term *= r / i, sum += term;
  return sum * from_bits(static_cast<u64>(static_cast<i64>(n) + kExponentBias) << kFractionBits);
}

// x > 0, normal.
ARK_APART double log_f64(double x) {
  const u64 bits = to_bits(x);
  i64 exponent = static_cast<i64>(bits >> kFractionBits) - kExponentBias;
  double m = from_bits((bits & kFraction) | kOne);
  if (m > kSqrt2) m *= 0.5, ++exponent;
  const double s = (m - 1.0) / (m + 1.0), square = s * s;
  double sum = 0;
  ARK_ROLLED
  for (int i = 23; i >= 1; i -= 2) sum = sum * square + 1.0 / i;
  const double n = static_cast<double>(exponent);
  return n * kLn2High + (2.0 * s * sum + n * kLn2Low);
}

// ---- noise

struct PhiloxBlock {
  u32 words[4];
};
// Philox4x32-10 (Salmon et al., SC'11).
ARK_DEVICE PhiloxBlock philox(u32 a, u32 b, u32 c, u32 d, u32 key0, u32 key1) {
  constexpr u32 kFactor0 = 0xD2511F53u, kFactor1 = 0xCD9E8D57u;  // of the paper, as the steps of the keys are
  constexpr u32 kKeyStep0 = 0x9E3779B9u, kKeyStep1 = 0xBB67AE85u;
  ARK_ROLLED
  for (int round = 0; round < 10; ++round) {
    const u32 high0 = dev::multiply_high(kFactor0, a), low0 = kFactor0 * a;
    const u32 high1 = dev::multiply_high(kFactor1, c), low1 = kFactor1 * c;
    a = high1 ^ b ^ key0, b = low1, c = high0 ^ d ^ key1, d = low0;
    key0 += kKeyStep0, key1 += kKeyStep1;
  }
  return {{a, b, c, d}};
}

ARK_DEVICE double gumbel(u32 bits) { return -log_f64(-log_f64((bits + 0.5) * 0x1p-32)); }

}  // namespace ark::cuda
