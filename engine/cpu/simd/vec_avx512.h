// Sixteen lanes of f32 in one AVX-512 register. Contract: vec_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "engine/cpu/simd/pair.h"

namespace ark::simd {
namespace {

struct Avx512 {
  static constexpr int kMaxRows = 12;
  static constexpr int kVectors = 2;
  static constexpr int kSmallRows = 6;
  static constexpr int kSmallVectors = 4;
  static constexpr int kScoreRows = 4, kAttentionVectors = 4, kAttentionRows = 4;
  using V = __m512;
  using Mask = __mmask16;

  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  static V zero() { return _mm512_setzero_ps(); }
  static V set(float x) { return _mm512_set1_ps(x); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static V load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static V load_bf16(const uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static V load_u8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static V load_i8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static Pair<Avx512> load_codes4(const uint8_t* p) {
    return look_up(p, _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  }
  static Pair<Avx512> load_numbers4(const uint8_t* p, const float* numbers) {
    return look_up(p, _mm512_loadu_ps(numbers));
  }
  static Pair<Avx512> look_up(const uint8_t* p, V numbers) {
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm512_permutexvar_ps(both, numbers),  // by the low four bits
            _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), numbers)};
  }
  static Pair<Avx512> load_codes8(const uint8_t* p) {
    const __m512i both = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(255))),
            _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 8))};
  }
  static V load_partial(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, V a) { _mm512_storeu_ps(p, a); }
  static void store_partial(float* p, V a, int n) { _mm512_mask_storeu_ps(p, first(n), a); }

  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V div(V a, V b) { return _mm512_div_ps(a, b); }
  static V sqrt(V a) { return _mm512_sqrt_ps(a); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V max(V a, V b) { return _mm512_max_ps(a, b); }
  static V min(V a, V b) { return _mm512_min_ps(a, b); }
  static V abs(V a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.f), a); }
  static V copy_sign(V size, V sign) {
    const V bit = _mm512_set1_ps(-0.f);
    return _mm512_or_ps(_mm512_andnot_ps(bit, size), _mm512_and_ps(bit, sign));
  }

  static Mask less(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Mask is_nan(V x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }
  static Mask lanes(int from, int to) { return static_cast<__mmask16>(first(to) & ~first(from)); }
  static V select(Mask m, V yes, V no) { return _mm512_mask_blend_ps(m, no, yes); }

  static V scale(V a, V n) {
    const __m512i e = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(n, n, _CMP_ORD_Q), n);
    return _mm512_mul_ps(
        a, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(127)), 23)));
  }
  // The same of |a| < 2 for any integral n, rounded once. What rounds to zero is not computed: an underflow takes 200
  // cycles, and masked scores' weights are such.
  static V scale_far(V a, V n) {
    const __mmask16 is_above = _mm512_cmp_ps_mask(n, _mm512_set1_ps(-152), _CMP_NLE_UQ);
    return _mm512_maskz_scalef_ps(is_above, a, n);
  }
  static float sum(V a) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
  }
  static float largest(V a) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
  }
  // Pairs of lanes of all vectors at once: the trees of sum() and largest(), 45 steps for sixteen of them.
  template <class Join>
  static V join_each(const V* v, Join join) {
    V sixteenths[4], halves[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      V pairs[2];
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        const V a = v[8 * j + i], b = v[8 * j + 4 + i];
        pairs[j] = join(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
      }
      sixteenths[i] = join(_mm512_shuffle_f32x4(pairs[0], pairs[1], 0x88),
                           _mm512_shuffle_f32x4(pairs[0], pairs[1], 0xDD));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const V a = sixteenths[2 * i], b = sixteenths[2 * i + 1];
      halves[i] = join(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
    }
    return join(_mm512_shuffle_ps(halves[0], halves[1], 0x88), _mm512_shuffle_ps(halves[0], halves[1], 0xDD));
  }
  static V sum_each(const V* v) { return join_each(v, add); }
  static V largest_each(const V* v) { return join_each(v, max); }
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  static void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
};

}  // namespace
}  // namespace ark::simd
