// What sampling needs of f64, and its noise: the same numbers as engine/cpu/sampler.cc but for the last bit
// of exp and log.
#pragma once

#include "engine/cuda/bodies/math.h"

namespace ark::cuda {

// ---- f64 functions: exp and log to about 1 ulp on normal results; enough for weights and noise

ARK_DEVICE double from_bits(u64 bits) { return __builtin_bit_cast(double, bits); }
ARK_DEVICE u64 to_bits(double v) { return __builtin_bit_cast(u64, v); }

// x <= 0; below -700: 0.
ARK_APART double exp_f64(double x) {
  if (!(x > -700.0)) return 0.0;
  const double n = static_cast<double>(static_cast<i64>(x * 1.4426950408889634 - 0.5));
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double sum = 1.0, term = 1.0;
  ARK_ROLLED
  for (int i = 1; i <= 14; ++i) term *= r / i, sum += term;
  return sum * from_bits(static_cast<u64>(static_cast<i64>(n) + 1023) << 52);
}

// x > 0, normal.
ARK_APART double log_f64(double x) {
  const u64 bits = to_bits(x);
  i64 exponent = static_cast<i64>(bits >> 52) - 1023;
  double m = from_bits((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) m *= 0.5, ++exponent;
  const double s = (m - 1.0) / (m + 1.0), square = s * s;
  double sum = 0;
  ARK_ROLLED
  for (int i = 23; i >= 1; i -= 2) sum = sum * square + 1.0 / i;
  const double n = static_cast<double>(exponent);
  return n * 0.693147180369123816490 + (2.0 * s * sum + n * 1.90821492927058770002e-10);
}

// ---- noise

struct PhiloxBlock {
  u32 words[4];
};
// Philox4x32-10 (Salmon et al., SC'11).
ARK_DEVICE PhiloxBlock philox(u32 a, u32 b, u32 c, u32 d, u32 key0, u32 key1) {
  ARK_ROLLED
  for (int round = 0; round < 10; ++round) {
    const u32 high0 = dev::multiply_high(0xD2511F53u, a), low0 = 0xD2511F53u * a;
    const u32 high1 = dev::multiply_high(0xCD9E8D57u, c), low1 = 0xCD9E8D57u * c;
    a = high1 ^ b ^ key0, b = low1, c = high0 ^ d ^ key1, d = low0;
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

ARK_DEVICE double gumbel(u32 bits) { return -log_f64(-log_f64((bits + 0.5) * 2.3283064365386963e-10)); }

}  // namespace ark::cuda
