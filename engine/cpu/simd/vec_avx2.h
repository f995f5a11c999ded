// Sixteen lanes of f32 in two AVX2 registers. Contract: vec_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "engine/cpu/simd/pair.h"

namespace ark::simd {
namespace {

struct Avx2 {
  static constexpr int kMaxRows = 6;
  static constexpr int kVectors = 1;
  static constexpr int kSmallRows = 3;
  static constexpr int kSmallVectors = 2;
  static constexpr int kScoreRows = 4, kAttentionVectors = 1, kAttentionRows = 1;
  struct V {
    __m256 a, b;
  };
  struct Mask {
    __m256 a, b;
  };

  // Lanes [from, to) of the half that starts at lane `base`.
  static __m256i half_mask(int from, int to, int base) {
    const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(base));
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lane);
    return _mm256_and_si256(below, _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(from - 1)));
  }
  static V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static V set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static V load_f16(const uint16_t* p) {
    const auto* h = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
  }
  static V load_bf16(const uint16_t* p) {
    const auto* h = reinterpret_cast<const __m128i*>(p);
    const auto widen = [](__m128i x) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
    };
    return {widen(_mm_loadu_si128(h)), widen(_mm_loadu_si128(h + 1))};
  }
  static V load_u8(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  static V load_i8(const int8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  // Low and high bits of eight pairs of codes.
  static __m256 low(__m256i both, int mask) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(mask)));
  }
  static Pair<Avx2> load_codes4(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i a = _mm256_cvtepu8_epi32(bytes), b = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));
    return {{low(a, 15), low(b, 15)},
            {_mm256_cvtepi32_ps(_mm256_srli_epi32(a, 4)), _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 4))}};
  }
  static Pair<Avx2> load_numbers4(const uint8_t* p, const float* numbers) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i a = _mm256_cvtepu8_epi32(bytes), b = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));
    const __m256 first = _mm256_loadu_ps(numbers), last = _mm256_loadu_ps(numbers + 8);
    // Permutations go by the low three bits, blends by the sign: the fourth.
    const auto look_up = [&](__m256i codes) {
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, codes), _mm256_permutevar8x32_ps(last, codes),
                              _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
    };
    return {{look_up(a), look_up(b)}, {look_up(_mm256_srli_epi32(a, 4)), look_up(_mm256_srli_epi32(b, 4))}};
  }
  static Pair<Avx2> load_codes8(const uint8_t* p) {
    const auto* h = reinterpret_cast<const __m128i*>(p);
    const __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128(h)),
                  b = _mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1));
    return {{low(a, 255), low(b, 255)},
            {_mm256_cvtepi32_ps(_mm256_srli_epi32(a, 8)), _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 8))}};
  }
  static V load_partial(const float* p, int n) {
    return {_mm256_maskload_ps(p, half_mask(0, n, 0)), _mm256_maskload_ps(p + 8, half_mask(0, n, 8))};
  }
  static void store(float* p, V x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static void store_partial(float* p, V x, int n) {
    _mm256_maskstore_ps(p, half_mask(0, n, 0), x.a);
    _mm256_maskstore_ps(p + 8, half_mask(0, n, 8), x.b);
  }

  static V add(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static V sub(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static V mul(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static V div(V x, V y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static V sqrt(V x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
  static V fma(V x, V y, V z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  static V max(V x, V y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static V min(V x, V y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static V abs(V x) {
    const __m256 bit = _mm256_set1_ps(-0.f);
    return {_mm256_andnot_ps(bit, x.a), _mm256_andnot_ps(bit, x.b)};
  }
  static V copy_sign(V size, V sign) {
    const __m256 bit = _mm256_set1_ps(-0.f);
    return {_mm256_or_ps(_mm256_andnot_ps(bit, size.a), _mm256_and_ps(bit, sign.a)),
            _mm256_or_ps(_mm256_andnot_ps(bit, size.b), _mm256_and_ps(bit, sign.b))};
  }

  static Mask less(V x, V y) {
    return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
  }
  static Mask is_nan(V x) {
    return {_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)};
  }
  static Mask lanes(int from, int to) {
    return {_mm256_castsi256_ps(half_mask(from, to, 0)), _mm256_castsi256_ps(half_mask(from, to, 8))};
  }
  static V select(Mask m, V yes, V no) {
    return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
  }

  static __m256 scale_half(__m256 x, __m256 n) {
    const __m256 finite = _mm256_and_ps(n, _mm256_cmp_ps(n, n, _CMP_ORD_Q));
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(finite), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(e, 23)));
  }
  static V scale(V x, V n) { return {scale_half(x.a, n.a), scale_half(x.b, n.b)}; }
  static float sum(V x) {
    const __m256 h = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
  }
  static float largest(V x) {
    const __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
  }
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
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  static void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
};

}  // namespace
}  // namespace ark::simd
