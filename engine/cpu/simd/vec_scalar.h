// Sixteen virtual lanes of f32 in plain C++: what AVX2 and AVX-512 must equal bit for bit.
//
// Every vector type has the same static functions; kernels are templates over it. max/min follow x86: the
// second operand if either is NaN. All types lie in unnamed namespaces, so that code compiled for one
// instruction set is never merged into another's by the linker.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "engine/cpu/simd/pair.h"

namespace ark::simd {
namespace {

struct Scalar {
  static constexpr int kMaxRows = 4;    // rows of a matmul block
  static constexpr int kVectors = 1;    // vectors of a matmul block
  static constexpr int kSmallRows = 0;  // up to so many rows, kSmallVectors vectors instead
  static constexpr int kSmallVectors = 1;
  // Of attention: rows and vectors of keys that are scored at once; rows, at most, that share values.
  static constexpr int kScoreRows = 4, kAttentionVectors = 1, kAttentionRows = 1;
  struct V {
    float v[16];
  };
  struct Mask {
    bool v[16];
  };

  template <typename F>
  static V each(F f) {
    V r;
    for (int i = 0; i < 16; ++i) r.v[i] = f(i);
    return r;
  }
  static V zero() { return set(0); }
  static V set(float x) {
    return each([&](int) { return x; });
  }
  static V load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static V load_f16(const uint16_t* p) {
    return each([&](int i) { return f16_to_f32(p[i]); });
  }
  static V load_bf16(const uint16_t* p) {
    return each([&](int i) { return bf16_to_f32(p[i]); });
  }
  static V load_u8(const uint8_t* p) {
    return each([&](int i) { return static_cast<float>(p[i]); });
  }
  static V load_i8(const int8_t* p) {
    return each([&](int i) { return static_cast<float>(p[i]); });
  }
  // Sixteen columns of two rows of codes (engine/program/weight_codec.h).
  static Pair<Scalar> load_codes4(const uint8_t* p) {
    return {each([&](int i) { return static_cast<float>(p[i] & 15); }),
            each([&](int i) { return static_cast<float>(p[i] >> 4); })};
  }
  // The same, codes being places in a table of 16 numbers.
  static Pair<Scalar> load_numbers4(const uint8_t* p, const float* numbers) {
    return {each([&](int i) { return numbers[p[i] & 15]; }), each([&](int i) { return numbers[p[i] >> 4]; })};
  }
  static Pair<Scalar> load_codes8(const uint8_t* p) {
    return {each([&](int i) { return static_cast<float>(p[2 * i]); }),
            each([&](int i) { return static_cast<float>(p[2 * i + 1]); })};
  }
  static V load_partial(const float* p, int n) {
    return each([&](int i) { return i < n ? p[i] : 0.f; });
  }
  static void store(float* p, V a) { std::memcpy(p, a.v, sizeof a.v); }
  static void store_partial(float* p, V a, int n) {
    std::memcpy(p, a.v, sizeof(float) * static_cast<std::size_t>(n));
  }

  static V add(V a, V b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
  }
  static V sub(V a, V b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
  }
  static V mul(V a, V b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static V div(V a, V b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
  }
  static V sqrt(V a) {
    return each([&](int i) { return std::sqrt(a.v[i]); });
  }
  static V fma(V a, V b, V c) {
    return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static V max(V a, V b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static V min(V a, V b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static V abs(V a) {
    return each([&](int i) { return std::fabs(a.v[i]); });
  }
  static V copy_sign(V size, V sign) {
    return each([&](int i) { return std::copysign(size.v[i], sign.v[i]); });
  }

  static Mask less(V a, V b) {
    Mask m;
    for (int i = 0; i < 16; ++i) m.v[i] = a.v[i] < b.v[i];
    return m;
  }
  static Mask is_nan(V a) {
    Mask m;
    for (int i = 0; i < 16; ++i) m.v[i] = a.v[i] != a.v[i];
    return m;
  }
  // Lanes [first, last).
  static Mask lanes(int first, int last) {
    Mask m;
    for (int i = 0; i < 16; ++i) m.v[i] = i >= first && i < last;
    return m;
  }
  static V select(Mask m, V yes, V no) {
    return each([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
  }

  // a * 2^n for integral n in [-126, 127].
  static V scale(V a, V n) {
    return each([&](int i) {
      const auto e = static_cast<int32_t>(n.v[i] == n.v[i] ? n.v[i] : 0.f);
      return a.v[i] * std::bit_cast<float>((e + 127) << 23);
    });
  }
  // Fixed tree: lanes i and i + 8, then + 4, + 2, + 1.
  static float sum(V a) {
    for (int h = 8; h >= 1; h /= 2) {
      for (int i = 0; i < h; ++i) a.v[i] = a.v[i] + a.v[i + h];
    }
    return a.v[0];
  }
  static float largest(V a) {
    for (int h = 8; h >= 1; h /= 2) {
      for (int i = 0; i < h; ++i) a.v[i] = a.v[i] > a.v[i + h] ? a.v[i] : a.v[i + h];
    }
    return a.v[0];
  }
  // Lane i is sum(v[i]) or largest(v[i]) of sixteen vectors.
  static V sum_each(const V* v) {
    float all[16];
    for (int i = 0; i < 16; ++i) all[i] = sum(v[i]);
    return load(all);
  }
  static V largest_each(const V* v) {
    float all[16];
    for (int i = 0; i < 16; ++i) all[i] = largest(v[i]);
    return load(all);
  }
  static void prefetch(const void*) {}
  static void prefetch_l2(const void*) {}
};

}  // namespace
}  // namespace ark::simd
