// Products of short numbers by instructions that add up two bf16 products, or four of a byte and a code, in each 32-bit
// lane: those of a word of x, which all columns share, with a word of each column. A piece of the weight is joined to
// such words once for all blocks of rows.
#pragma once

// GCC 12 warns of its own intrinsics, whose undefined operands are deliberate (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <array>

#include "engine/cpu/simd/dot_matmul.h"
#include "engine/cpu/simd/vec_avx512.h"

namespace ark::simd {
namespace {

alignas(64) constexpr std::byte kZeroRow[128]{};

inline void fetch(const char* p, int lines) {
  for (int line = 0; line < lines; ++line) Avx512::prefetch(p + line * 64);
}

// Stored rows of 64 columns, `stride` bytes apart; what lies behind the last is zero.
struct StoredRows {
  const std::byte* first;
  int64_t stride, count;
  const std::byte* at(int64_t i) const { return i < count ? first + i * stride : kZeroRow; }
  const char* ahead() const { return reinterpret_cast<const char*>(first) + kAhead; }
};

// Columns' 16 bits of two rows as words.
inline void join_pairs(const std::byte* low, const std::byte* high, __m512i* words) {
  alignas(64) static constexpr auto kOrder = [] {
    std::array<uint16_t, 64> order{};
    for (uint16_t i = 0; i < 32; ++i) order[2 * i] = i, order[2 * i + 1] = i + 32;
    return order;
  }();
  const __m512i first = _mm512_load_si512(kOrder.data()), second = _mm512_load_si512(kOrder.data() + 32);
  for (int half = 0; half < 2; ++half) {
    const __m512i a = _mm512_loadu_si512(low + 64 * half), b = _mm512_loadu_si512(high + 64 * half);
    words[2 * half] = _mm512_permutex2var_epi16(a, first, b);
    words[2 * half + 1] = _mm512_permutex2var_epi16(a, second, b);
  }
}

// Columns' bytes of four rows as words.
inline void join_bytes(const __m512i* rows, __m512i* words) {
  const __m512i low01 = _mm512_unpacklo_epi8(rows[0], rows[1]),
                low23 = _mm512_unpacklo_epi8(rows[2], rows[3]),
                high01 = _mm512_unpackhi_epi8(rows[0], rows[1]),
                high23 = _mm512_unpackhi_epi8(rows[2], rows[3]);
  words[0] = _mm512_unpacklo_epi16(low01, low23);
  words[1] = _mm512_unpackhi_epi16(low01, low23);
  words[2] = _mm512_unpacklo_epi16(high01, high23);
  words[3] = _mm512_unpackhi_epi16(high01, high23);
}

// A word holds four k of a column. Of 8 bits: two stored rows of pairs, k in order. Of 4 bits: four rows, whose low
// halves make one word, whose high halves the next: k = 0, 2, 4, 6 and 1, 3, 5, 7.
template <bool kNibbles>
struct StoredCodes : StoredRows {
  static constexpr int kGroups = kNibbles ? 2 : 1;
  static int64_t words_of(int64_t block) { return kNibbles ? (block + 7) / 8 * 2 : (block + 3) / 4; }
  // The k of byte `i` of a block's words.
  static int64_t k_of(int64_t i) { return kNibbles ? i / 8 * 8 + i / 4 % 2 + i % 4 * 2 : i; }
  void get(int64_t group, int, __m512i (*to)[4]) const {
    if constexpr (kNibbles)
      split_nibbles(2 * group, to);
    else
      join_pairs(at(2 * group), at(2 * group + 1), *to);
  }
  void split_nibbles(int64_t first_row, __m512i (*to)[4]) const {
    // Four columns at a time from sixteen at a lane's stride, so that joining lane by lane leaves them in order.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i rows[4], both[4];
    for (int i = 0; i < 4; ++i)
      rows[i] = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(at(first_row + i)));
    join_bytes(rows, both);
    const __m512i low = _mm512_set1_epi8(15);
    for (int v = 0; v < 4; ++v) {
      to[0][v] = _mm512_and_si512(both[v], low);
      to[1][v] = _mm512_and_si512(_mm512_srli_epi16(both[v], 4), low);
    }
  }
};

// Words as they lie in a piece that is joined.
struct JoinedWords {
  static constexpr int kGroups = 1;
  const __m512i (*words)[4];
  template <int C>
  void get(int64_t group, int column, __m512i (*to)[C]) const {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) to[0][c] = words[group][column + c];
  }
};

// R rows of x, [group][R], times a piece of words, C vectors of columns at a time. A piece is one run of groups or
// more.
//   Words::get(group, column, to)    makes those of kGroups groups
//   Dots::Lanes                      what the instruction adds to
//   Dots::dot(lanes, x, w)           the instruction
//   Dots::kTerms                     words of x for each row that follow a run
//   Dots::kLines, fetch()            how much of what is ahead is fetched with each group
//   next()                           from a run to the next one
//   begin(sums, row)                 what lanes are before a run
//   end(lanes, column, sums)         adds them to sums of f32
template <class Dots, class Words, int R, int C>
void run_dots(const Dots& first, const int32_t* x, const Words& words, int64_t runs, int64_t groups,
              const char* ahead, float (*sums)[kStripe]) {
  for (int column = 0; column < 4; column += C) {
    Dots dots = first;
    const int32_t* at = x;
    for (int64_t run = 0, g = 0; run < runs; ++run, dots.next(), at += R * Dots::kTerms) {
      typename Dots::Lanes lanes[R][C];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) lanes[r][c] = dots.begin(sums[r] + (column + c) * 16, r);
      }
      for (const int64_t end = g + groups; g < end; g += Words::kGroups) {
        if (ahead) {
          for (int line = 0; line < Dots::kLines * Words::kGroups; ++line, ahead += 64) Dots::fetch(ahead);
        }
        __m512i w[Words::kGroups][C];
        words.get(g, column, w);
#pragma GCC unroll 2
        for (int i = 0; i < Words::kGroups; ++i, at += R) {
#pragma GCC unroll 12
          for (int r = 0; r < R; ++r) {
            const __m512i xv = _mm512_set1_epi32(at[r]);
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) lanes[r][c] = Dots::dot(lanes[r][c], xv, w[i][c]);
          }
        }
      }
      dots.template end<R, C>(lanes, column * 16, sums);
    }
    ahead = nullptr;
  }
}

constexpr int kFewDotRows = 4;

// Many blocks of rows share a piece so long that their sums are loaded and stored seldom. It lies in the second-level
// cache, from which each vector of it is read once a block.
constexpr int kDotBlocks = 12, kBlocksOfShortPiece = 2, kLeastRowsOfMany = 8;
static_assert(kBlocksOfShortPiece * Avx512::kMaxRows / (kBlocksOfShortPiece + 1) >= kLeastRowsOfMany);
constexpr int64_t kLongPiece = 768;

// The instance of run_dots for a block's rows, kLeast of them at least: few from where they are stored, more from
// joined words.
template <class Dots, class Stored, int kLeast = 1, int R = Avx512::kMaxRows>
void run_block(const Dots& dots, int rows, const int32_t* x, const Stored& stored, const __m512i (*joined)[4],
               int64_t runs, int64_t groups, const char* ahead, float (*sums)[kStripe]) {
  if (rows == R) {
    if constexpr (R <= kFewDotRows)
      run_dots<Dots, Stored, R, 4>(dots, x, stored, runs, groups, ahead, sums);
    else
      run_dots<Dots, JoinedWords, R, R <= Avx512::kSmallRows ? 4 : 2>(dots, x, {joined}, runs, groups, ahead,
                                                                      sums);
  } else if constexpr (R > kLeast) {
    run_block<Dots, Stored, kLeast, R - 1>(dots, rows, x, stored, joined, runs, groups, ahead, sums);
  }
}

}  // namespace
}  // namespace ark::simd
