// Rows of x quantized by whole vectors, as quantize() of dot_matmul.h does one.
#pragma once

#include "engine/cpu/simd/pack_avx512.h"
#include "engine/cpu/simd/vec_avx512.h"

namespace ark::simd {
namespace {

// Scales of up to sixteen rows' blocks, and what numbers are multiplied by.
struct Quantizers {
  __m512 scales;
  alignas(64) float factors[16];
};

// False if a number is infinite or NaN. `block`: a multiple of 32; rows[16] exist, if need be one of them often.
inline bool find_quantizers(const float* const* rows, int64_t block, Quantizers& to) {
  // As integers, of which NaN is the largest.
  const auto larger = [](__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  };
  __m512 most[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    most[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < block; i += 16)
      most[r] = larger(most[r], Avx512::abs(_mm512_loadu_ps(rows[r] + i)));
  }
  const __m512 largest = Avx512::join_each(most, larger), limit = _mm512_set1_ps(127);
  const __m512i bits = _mm512_castps_si512(largest);
  if (_mm512_cmpge_epu32_mask(bits, _mm512_set1_epi32(0x7F800000))) return false;
  const __mmask16 usable = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
  to.scales = _mm512_maskz_div_ps(usable, largest, limit);
  _mm512_store_ps(to.factors, _mm512_maskz_div_ps(usable, limit, largest));
  return true;
}

// Integers of 32 numbers of each row from `at` on, as eight words of four of sixteen rows. Of numbers whose codes are
// nibbles a word holds every second one.
template <bool kNibbles>
void quantize_32(const float* const* rows, int64_t at, const Quantizers& by, __m512i* words) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
                odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const auto integers = [&](int r) {  // 16 bits each
    const __m512 first = _mm512_loadu_ps(rows[r] + at), last = _mm512_loadu_ps(rows[r] + at + 16),
                 factor = _mm512_set1_ps(by.factors[r]);
    const __m512 a = kNibbles ? _mm512_permutex2var_ps(first, even, last) : first,
                 b = kNibbles ? _mm512_permutex2var_ps(first, odd, last) : last;
    return _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(a, factor)),
                              _mm512_cvtps_epi32(_mm512_mul_ps(b, factor)));
  };
  // A quarter: a word of a and one of b of row r, then of row r + 8.
  __m512i both[8], pairs[8];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) both[r] = _mm512_packs_epi16(integers(r), integers(r + 8));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[i] = _mm512_unpacklo_epi32(both[2 * i], both[2 * i + 1]);
    pairs[4 + i] = _mm512_unpackhi_epi32(both[2 * i], both[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m512i fours[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      fours[i] = half == 0 ? _mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1])
                           : _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]);
    __m512i columns[4];
    join_quarters(fours, columns);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) words[kNibbles ? 2 * i + half : 4 * half + i] = columns[i];
  }
}

// A whole block of rows from x on, `stride` numbers apart, as pack_block() lays it. False if that must do it.
template <bool kNibbles>
bool quantize_block(const float* x, int64_t stride, int64_t rows, int64_t block, BlockTerms terms,
                    float* to) {
  const float* each[16];
  for (int64_t r = 0; r < 16; ++r) each[r] = x + std::min(r, rows - 1) * stride;
  Quantizers by;
  if (!find_quantizers(each, block, by)) return false;
  __m512i sums = _mm512_setzero_si512();
  for (int64_t at = 0; at < block; at += 32) {
    __m512i words[8];
    quantize_32<kNibbles>(each, at, by, words);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i, to += rows) {
      sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), words[i]);
      _mm512_storeu_si512(to, words[i]);
    }
  }
  _mm512_storeu_ps(to, by.scales);
  const __m512 whole = _mm512_cvtepi32_ps(sums);
  _mm512_storeu_ps(to + rows, has_zeros(terms) ? whole : _mm512_mul_ps(whole, by.scales));
  return true;
}

}  // namespace
}  // namespace ark::simd
