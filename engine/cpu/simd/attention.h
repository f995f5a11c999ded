// Some pages of keys and values against the query rows of one KV head.
//
// Per (row, key) one FMA chain over the key's dimensions; keys lie transposed in their page, so that sixteen
// keys share a vector. Per page and row: new maximum, old state scaled by exp(old - new), sum of the page's
// weights by the sixteen-lane tree, one FMA chain per value dimension in ascending key order. Nothing depends
// on which other rows, pages or later keys are there. Online softmax: arXiv:1805.02867.
#pragma once

#include <algorithm>
#include <cmath>

#include "engine/cpu/simd/math.h"
#include "engine/cpu/simd/table.h"

namespace ark::simd {
namespace {

// Sixteen keys of a page: dimension d of key j at keys[d * page_size + j].
struct KeyVector {
  const float* keys;
  int lanes;
  float* scores;  // of the first row
};

// scores[r][j] = q_r . k_j for R rows and C vectors of keys; rows' scores lie `stride` apart.
template <class T, int R, int C, bool kWhole>
void score_keys(const AttentionRows& a, int64_t row, const KeyVector* vectors, int64_t stride) {
  typename T::V acc[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = T::zero();
  }
  for (int64_t d = 0; d < a.key_dim; ++d) {
    typename T::V k[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const float* key = vectors[c].keys + d * a.page_size;
      k[c] = kWhole ? T::load(key) : T::load_partial(key, vectors[c].lanes);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const typename T::V q = T::set(a.queries[row + r][d]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = T::fma(q, k[c], acc[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) T::store(vectors[c].scores + r * stride, acc[r][c]);
  }
}

// All keys of the pages for R rows; a page's scores take up whole vectors.
template <class T, int R>
void score_pages(const AttentionRows& a, int64_t row, int64_t stride) {
  constexpr int C = T::kAttentionVectors;
  const auto size = static_cast<int>(a.page_size), a_page = (size + 15) / 16;
  const int count = static_cast<int>(a.pages) * a_page;
  KeyVector vectors[C];
  for (int v = 0, n; v < count; v += n) {
    n = size % 16 == 0 && v + C <= count ? C : 1;
    for (int c = 0; c < n; ++c) {
      const int key = (v + c) % a_page * 16;
      vectors[c] = {a.keys[(v + c) / a_page] + key, std::min(16, size - key), a.scores + (v + c) * 16};
    }
    if (size % 16 != 0)
      score_keys<T, R, 1, false>(a, row, vectors, stride);
    else if (n == C)
      score_keys<T, R, C, true>(a, row, vectors, stride);
    else
      score_keys<T, R, 1, true>(a, row, vectors, stride);
  }
}

// The keys of a page that a row sees.
struct Seen {
  int64_t first, last;
  bool operator==(const Seen&) const = default;
};
inline Seen seen(const AttentionRows& a, int64_t row, int64_t page) {
  const int64_t start = page * a.page_size;
  return {std::clamp<int64_t>(a.first[row] - start, 0, a.page_size),
          std::clamp<int64_t>(a.last[row] - start, 0, a.page_size)};
}

// Scores of one page -> weights of one row; updates maximum and sum, returns the factor for the accumulator.
template <class T>
float weigh_keys(const AttentionRows& a, int64_t row, int64_t page, Seen keys, float* scores) {
  using V = typename T::V;
  static constexpr float kLane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const V minus_infinity = T::set(-INFINITY);
  const int64_t vectors = (a.page_size + 15) / 16;
  const auto bound = [](int64_t x) { return static_cast<int>(x < 0 ? 0 : x > 16 ? 16 : x); };
  V largest = minus_infinity;
  for (int64_t v = 0; v < vectors; ++v) {
    V s = T::mul(T::load(scores + v * 16), T::set(a.scale));
    if (a.softcap > 0) s = T::mul(T::set(a.softcap), tanh<T>(T::div(s, T::set(a.softcap))));
    if (a.slopes) {
      const auto first = static_cast<float>(page * a.page_size + v * 16 - a.at[row]);
      s = T::fma(T::set(a.slopes[row]), T::add(T::load(kLane), T::set(first)), s);
    }
    s = T::select(T::lanes(bound(keys.first - v * 16), bound(keys.last - v * 16)), s, minus_infinity);
    largest = T::max(largest, s);
    T::store(scores + v * 16, s);
  }
  const float before = a.maxima[row];
  const float of_page = T::largest(largest);
  const float now = before > of_page ? before : of_page;
  if (now == -INFINITY) {  // every score was -infinity: weights are 0
    for (int64_t v = 0; v < vectors; ++v) T::store(scores + v * 16, T::zero());
    return 1;
  }
  V sum = T::zero();
  for (int64_t v = 0; v < vectors; ++v) {
    const V weight = exp<T>(T::sub(T::load(scores + v * 16), T::set(now)));
    sum = T::add(sum, weight);
    T::store(scores + v * 16, weight);
  }
  alignas(64) float factor[16];
  T::store(factor, exp<T>(T::set(before - now)));
  a.maxima[row] = now;
  a.sums[row] = a.sums[row] * factor[0] + T::sum(sum);
  return factor[0];
}

// acc = acc * factor + sum of weight_j value_j, ascending j, for R rows that see the same keys; C vectors of the
// value's dimensions from d on. Rows' weights lie `stride` apart.
template <class T, int R, int C>
void add_values(const AttentionRows& a, int64_t row, const float* values, Seen keys, const float* weights,
                int64_t stride, const float* factors, int64_t d) {
  using V = typename T::V;
  float* out = a.accumulators + row * a.value_dim + d;
  const int lanes = static_cast<int>(std::min<int64_t>(16, a.value_dim - d));
  const auto load = [&](const float* p) {
    return C > 1 || lanes == 16 ? T::load(p) : T::load_partial(p, lanes);
  };
  V acc[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = T::mul(load(out + r * a.value_dim + c * 16), T::set(factors[r]));
  }
  for (int64_t j = keys.first; j < keys.last; ++j) {
    V value[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) value[c] = load(values + j * a.value_dim + d + c * 16);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const V weight = T::set(weights[r * stride + j]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = T::fma(weight, value[c], acc[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      if (C > 1 || lanes == 16) {
        T::store(out + r * a.value_dim + c * 16, acc[r][c]);
      } else {
        T::store_partial(out + r * a.value_dim + c * 16, acc[r][c], lanes);
      }
    }
  }
}

template <class T, int R>
void add_page(const AttentionRows& a, int64_t row, int64_t page, Seen keys, const float* weights,
              int64_t stride, const float* factors) {
  int64_t d = 0;
  for (; d + 64 <= a.value_dim; d += 64)
    add_values<T, R, 4>(a, row, a.values[page], keys, weights, stride, factors, d);
  for (; d < a.value_dim; d += 16)
    add_values<T, R, 1>(a, row, a.values[page], keys, weights, stride, factors, d);
}

// R rows from `row` on.
template <class T, int R>
void attend(const AttentionRows& a, int64_t row) {
  const int64_t page_room = (a.page_size + 15) / 16 * 16, stride = a.pages * page_room;
  score_pages<T, R>(a, row, stride);
  for (int64_t page = 0; page < a.pages; ++page) {
    float* const weights = a.scores + page * page_room;
    Seen keys[R];
    float factors[R];
    bool together = R <= T::kAttentionRows;
    for (int r = 0; r < R; ++r) {
      keys[r] = seen(a, row + r, page);
      together = together && keys[r] == keys[0];
      if (keys[r].first < keys[r].last)
        factors[r] = weigh_keys<T>(a, row + r, page, keys[r], weights + r * stride);
    }
    constexpr int kShared = R <= T::kAttentionRows ? R : 1;
    for (int r = 0; r < R; r += together ? kShared : 1) {
      if (keys[r].first >= keys[r].last) continue;
      if (together)
        add_page<T, kShared>(a, row + r, page, keys[r], weights + r * stride, stride, factors + r);
      else
        add_page<T, 1>(a, row + r, page, keys[r], weights + r * stride, stride, factors + r);
    }
  }
}

template <class T>
void attention(const AttentionRows& a) {
  constexpr int kRows = T::kScoreRows;
  static_assert(kRows <= AttentionRows::kTogether && kRows <= 4, "fewer than that are left over below");
  int64_t row = 0;
  for (; row + kRows <= a.rows; row += kRows) attend<T, kRows>(a, row);
  if (a.rows - row == 3) return attend<T, 3>(a, row);
  if (a.rows - row == 2) return attend<T, 2>(a, row);
  if (a.rows - row == 1) return attend<T, 1>(a, row);
}

}  // namespace
}  // namespace ark::simd
