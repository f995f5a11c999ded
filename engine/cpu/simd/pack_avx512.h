// Rows of x packed by whole vectors: sixteen words of up to sixteen rows at a time.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

namespace ark::simd {
namespace {

// to[i]: quarters i of four vectors.
inline void join_quarters(const __m512i* four, __m512i* to) {
  const __m512i even0 = _mm512_shuffle_i32x4(four[0], four[1], 0x88),
                even1 = _mm512_shuffle_i32x4(four[2], four[3], 0x88),
                odd0 = _mm512_shuffle_i32x4(four[0], four[1], 0xDD),
                odd1 = _mm512_shuffle_i32x4(four[2], four[3], 0xDD);
  to[0] = _mm512_shuffle_i32x4(even0, even1, 0x88);
  to[1] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
  to[2] = _mm512_shuffle_i32x4(even0, even1, 0xDD);
  to[3] = _mm512_shuffle_i32x4(odd0, odd1, 0xDD);
}

// Word i of row r at rows[r][i] -> word r of row i.
inline void transpose(__m512i* rows) {
  __m512i two[16], four[16];
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    two[r] = _mm512_unpacklo_epi32(rows[r], rows[r + 1]);
    two[r + 1] = _mm512_unpackhi_epi32(rows[r], rows[r + 1]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4) {
    four[r] = _mm512_unpacklo_epi64(two[r], two[r + 2]);
    four[r + 1] = _mm512_unpackhi_epi64(two[r], two[r + 2]);
    four[r + 2] = _mm512_unpacklo_epi64(two[r + 1], two[r + 3]);
    four[r + 3] = _mm512_unpackhi_epi64(two[r + 1], two[r + 3]);
  }
  // A quarter of four[4 * j + i] is word i, 4 + i, 8 + i or 12 + i of rows 4 * j to 4 * j + 3.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i all[] = {four[i], four[4 + i], four[8 + i], four[12 + i]};
    __m512i columns[4];
    join_quarters(all, columns);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) rows[4 * j + i] = columns[j];
  }
}

// The first n numbers at p, the others 0.
inline __m512 load_first(const float* p, int64_t n) {
  const int64_t lanes = std::clamp<int64_t>(n, 0, 16);
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << lanes) - 1), p);
}

// `words` words of up to sixteen rows as [word][rows]: load(r, w) makes words w to w + 15 of row r. Whole vectors are
// stored, so what follows is written after it, and up to fifteen words more.
template <class Load>
void pack_words(int64_t rows, int64_t words, float* to, Load load) {
  for (int64_t w = 0; w < words; w += 16) {
    __m512i v[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) v[r] = load(std::min<int64_t>(r, rows - 1), w);
    transpose(v);
    const int64_t n = std::min<int64_t>(16, words - w);
    for (int64_t i = 0; i < n; ++i) _mm512_storeu_si512(to + (w + i) * rows, v[i]);
  }
}

}  // namespace
}  // namespace ark::simd
