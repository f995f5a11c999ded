// Some pages of keys and values against the query rows of one KV head.
//
// Per (row, key) one FMA chain over the key's dimensions, then times the key's scale where its type has one; keys lie
// transposed in their page, so that sixteen keys share a vector. Per page and row: new maximum, old state scaled by
// exp(old - new), sum of the page's weights by the sixteen-lane tree, one FMA chain per value dimension in ascending
// key order, of weights times the values' scales. Nothing depends on which other rows, pages or later keys are there.
// Online softmax: arXiv:1805.02867.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "engine/cpu/simd/math.h"
#include "engine/cpu/simd/table.h"
#include "engine/program/kv_codec.h"

namespace ark::simd {
namespace {

// The first n <= 16 elements of a stored type K (engine/program/kv_codec.h) at p; the others are 0.
template <class T, class K>
typename T::V load_some(const typename K::Element* p, int n) {
  if constexpr (std::is_same_v<typename K::Element, float>) {
    return T::load_partial(p, n);
  } else {
    typename K::Element all[16] = {};
    std::memcpy(all, p, static_cast<std::size_t>(n) * sizeof *p);
    return K::template load<T>(all);
  }
}

template <class K>
const typename K::Element* codes(const std::byte* part) {
  return reinterpret_cast<const typename K::Element*>(part);
}
// Those behind the codes.
template <class K>
const float* scales(const std::byte* part, int64_t page_size, int64_t dim) {
  return reinterpret_cast<const float*>(part + K::kCodec.format.code_bytes(page_size, dim));
}

// Sixteen keys of a page: dimension d of key j at keys[d * page_size + j].
template <class K>
struct KeyVector {
  const typename K::Element* keys;
  int lanes;
  float* scores;        // of the first row
  const float* scales;  // of the keys, if they have such
};

// scores[r][j] = q_r . k_j for R rows and C vectors of keys; rows' scores lie `stride` apart.
template <class T, class K, int R, int C, bool kWhole>
void score_keys(const AttentionRows& a, int64_t row, const KeyVector<K>* vectors, int64_t stride) {
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
      const auto* key = vectors[c].keys + d * a.page_size;
      k[c] = kWhole ? K::template load<T>(key) : load_some<T, K>(key, vectors[c].lanes);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const typename T::V q = T::set(a.queries[row + r][d]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = T::fma(q, k[c], acc[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    [[maybe_unused]] typename T::V scale;
    if constexpr (K::kCodec.format.has_scales())
      scale = kWhole ? T::load(vectors[c].scales) : T::load_partial(vectors[c].scales, vectors[c].lanes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      if constexpr (K::kCodec.format.has_scales()) acc[r][c] = T::mul(acc[r][c], scale);
      T::store(vectors[c].scores + r * stride, acc[r][c]);
    }
  }
}

// All keys of the pages for R rows; a page's scores take up whole vectors.
template <class T, class K, int R>
void score_pages(const AttentionRows& a, int64_t row, int64_t stride) {
  constexpr int C = T::kAttentionVectors;
  const auto size = static_cast<int>(a.page_size), a_page = (size + 15) / 16;
  const int count = static_cast<int>(a.pages) * a_page;
  KeyVector<K> vectors[C];
  for (int v = 0, n; v < count; v += n) {
    n = size % 16 == 0 && v + C <= count ? C : 1;
    for (int c = 0; c < n; ++c) {
      const int key = (v + c) % a_page * 16;
      const std::byte* const part = a.keys[(v + c) / a_page];
      vectors[c] = {codes<K>(part) + key, std::min(16, size - key), a.scores + (v + c) * 16,
                    scales<K>(part, size, a.key_dim) + key};
    }
    if (size % 16 != 0)
      score_keys<T, K, R, 1, false>(a, row, vectors, stride);
    else if (n == C)
      score_keys<T, K, R, C, true>(a, row, vectors, stride);
    else
      score_keys<T, K, R, 1, true>(a, row, vectors, stride);
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

// Scores of one page -> weights of one row, times the values' scales; updates maximum and sum, returns the factor for
// the accumulator.
template <class T, class K>
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
    if constexpr (K::kCodec.format.has_scales()) {
      const float* const scale = scales<K>(a.values[page], a.page_size, a.value_dim) + v * 16;
      const int lanes = static_cast<int>(std::min<int64_t>(16, a.page_size - v * 16));
      T::store(scores + v * 16, T::mul(weight, T::load_partial(scale, lanes)));
    } else {
      T::store(scores + v * 16, weight);
    }
  }
  alignas(64) float factor[16];
  T::store(factor, exp<T>(T::set(before - now)));
  a.maxima[row] = now;
  a.sums[row] = a.sums[row] * factor[0] + T::sum(sum);
  return factor[0];
}

// acc = acc * factor + sum of weight_j value_j, ascending j, for R rows that see the same keys; C vectors of the
// value's dimensions from d on. Rows' weights lie `stride` apart.
template <class T, class K, int R, int C>
void add_values(const AttentionRows& a, int64_t row, const typename K::Element* values, Seen keys,
                const float* weights, int64_t stride, const float* factors, int64_t d) {
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
    for (int c = 0; c < C; ++c) {
      const auto* v = values + j * a.value_dim + d + c * 16;
      value[c] = C > 1 || lanes == 16 ? K::template load<T>(v) : load_some<T, K>(v, lanes);
    }
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

template <class T, class K, int R>
void add_page(const AttentionRows& a, int64_t row, int64_t page, Seen keys, const float* weights,
              int64_t stride, const float* factors) {
  const auto* const values = codes<K>(a.values[page]);
  int64_t d = 0;
  for (; d + 64 <= a.value_dim; d += 64)
    add_values<T, K, R, 4>(a, row, values, keys, weights, stride, factors, d);
  for (; d < a.value_dim; d += 16) add_values<T, K, R, 1>(a, row, values, keys, weights, stride, factors, d);
}

// R rows from `row` on.
template <class T, class K, int R>
void attend(const AttentionRows& a, int64_t row) {
  const int64_t page_room = (a.page_size + 15) / 16 * 16, stride = a.pages * page_room;
  score_pages<T, K, R>(a, row, stride);
  for (int64_t page = 0; page < a.pages; ++page) {
    float* const weights = a.scores + page * page_room;
    Seen keys[R];
    float factors[R];
    bool together = R <= T::kAttentionRows;
    for (int r = 0; r < R; ++r) {
      keys[r] = seen(a, row + r, page);
      together = together && keys[r] == keys[0];
      if (keys[r].first < keys[r].last)
        factors[r] = weigh_keys<T, K>(a, row + r, page, keys[r], weights + r * stride);
    }
    constexpr int kShared = R <= T::kAttentionRows ? R : 1;
    for (int r = 0; r < R; r += together ? kShared : 1) {
      if (keys[r].first >= keys[r].last) continue;
      if (together)
        add_page<T, K, kShared>(a, row + r, page, keys[r], weights + r * stride, stride, factors + r);
      else
        add_page<T, K, 1>(a, row + r, page, keys[r], weights + r * stride, stride, factors + r);
    }
  }
}

template <class T, class K>
void attend_all(const AttentionRows& a) {
  constexpr int kRows = T::kScoreRows;
  static_assert(kRows <= AttentionRows::kTogether && kRows <= 4, "fewer than that are left over below");
  int64_t row = 0;
  for (; row + kRows <= a.rows; row += kRows) attend<T, K, kRows>(a, row);
  if (a.rows - row == 3) return attend<T, K, 3>(a, row);
  if (a.rows - row == 2) return attend<T, K, 2>(a, row);
  if (a.rows - row == 1) return attend<T, K, 1>(a, row);
}

template <class T>
void attention(const AttentionRows& a) {
  with_kv(a.stored, [&](auto type) { attend_all<T, decltype(type)>(a); });
}

}  // namespace
}  // namespace ark::simd
