// One page of keys and values against the query rows of one KV head.
//
// Per (row, key) one FMA chain over the key's dimensions; keys lie transposed in their page, so that sixteen
// keys share a vector. Per page and row: new maximum, old state scaled by exp(old - new), sum of the page's
// weights by the sixteen-lane tree, one FMA chain per value dimension in ascending key order. Nothing depends
// on which other rows or later keys are there. Online softmax: arXiv:1805.02867.
#pragma once

#include <algorithm>
#include <cmath>

#include "engine/cpu/simd/math.h"
#include "engine/cpu/simd/table.h"

namespace ark::simd {
namespace {

// scores[r][j] = q_r . k_j for R rows and the keys [16 v, 16 v + 16) of the page.
template <class T, int R>
void score_keys(const AttentionRows& a, int64_t row, int64_t v, float* scores, int64_t stride) {
  const int lanes = static_cast<int>(std::min<int64_t>(16, a.page_size - v * 16));
  typename T::V acc[R];
  for (int r = 0; r < R; ++r) acc[r] = T::zero();
  const float* key = a.keys + v * 16;
  for (int64_t d = 0; d < a.key_dim; ++d, key += a.page_size) {
    const typename T::V k = lanes == 16 ? T::load(key) : T::load_partial(key, lanes);
    for (int r = 0; r < R; ++r) acc[r] = T::fma(T::set(a.queries[row + r][d]), k, acc[r]);
  }
  for (int r = 0; r < R; ++r) T::store(scores + r * stride + v * 16, acc[r]);
}

// Scores -> weights of one row; updates maximum and sum, returns the factor for the accumulator.
template <class T>
float weigh_keys(const AttentionRows& a, int64_t row, float* scores, int64_t vectors) {
  using V = typename T::V;
  static constexpr float kLane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const V minus_infinity = T::set(-INFINITY);
  const auto bound = [](int64_t x) { return static_cast<int>(x < 0 ? 0 : x > 16 ? 16 : x); };
  V largest = minus_infinity;
  for (int64_t v = 0; v < vectors; ++v) {
    V s = T::mul(T::load(scores + v * 16), T::set(a.scale));
    if (a.softcap > 0) s = T::mul(T::set(a.softcap), tanh<T>(T::div(s, T::set(a.softcap))));
    if (a.slopes) {
      const V distance = T::add(T::load(kLane), T::set(static_cast<float>(v * 16 - a.at[row])));
      s = T::fma(T::set(a.slopes[row]), distance, s);
    }
    s = T::select(T::lanes(bound(a.first[row] - v * 16), bound(a.last[row] - v * 16)), s, minus_infinity);
    largest = T::max(largest, s);
    T::store(scores + v * 16, s);
  }
  const float before = a.maxima[row];
  const float page = T::largest(largest);
  const float now = before > page ? before : page;
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

// acc = acc * factor + sum of weight_j value_j, ascending j; C vectors of the value's dimensions at a time.
template <class T, int C>
void add_values(const AttentionRows& a, int64_t row, const float* weights, float factor, int64_t d) {
  using V = typename T::V;
  float* out = a.accumulators + row * a.value_dim + d;
  const int lanes = static_cast<int>(std::min<int64_t>(16, a.value_dim - d));
  V acc[C];
  for (int c = 0; c < C; ++c) {
    const V old = lanes == 16 ? T::load(out + c * 16) : T::load_partial(out + c * 16, lanes);
    acc[c] = T::mul(old, T::set(factor));
  }
  for (int64_t j = a.first[row]; j < a.last[row]; ++j) {
    const V weight = T::set(weights[j]);
    const float* value = a.values + j * a.value_dim + d;
    for (int c = 0; c < C; ++c) {
      acc[c] = T::fma(weight, lanes == 16 ? T::load(value + c * 16) : T::load_partial(value + c * 16, lanes),
                      acc[c]);
    }
  }
  for (int c = 0; c < C; ++c) {
    if (lanes == 16) {
      T::store(out + c * 16, acc[c]);
    } else {
      T::store_partial(out + c * 16, acc[c], lanes);
    }
  }
}

template <class T>
void attention(const AttentionRows& a) {
  const int64_t vectors = (a.page_size + 15) / 16, stride = vectors * 16;
  for (int64_t row = 0; row < a.rows; row += 4) {
    const int64_t group = std::min<int64_t>(4, a.rows - row);
    for (int64_t v = 0; v < vectors; ++v) {
      switch (group) {
        case 4:
          score_keys<T, 4>(a, row, v, a.scores, stride);
          break;
        case 3:
          score_keys<T, 3>(a, row, v, a.scores, stride);
          break;
        case 2:
          score_keys<T, 2>(a, row, v, a.scores, stride);
          break;
        default:
          score_keys<T, 1>(a, row, v, a.scores, stride);
          break;
      }
    }
    for (int64_t r = row; r < row + group; ++r) {
      if (a.first[r] >= a.last[r]) continue;
      float* weights = a.scores + (r - row) * stride;
      const float factor = weigh_keys<T>(a, r, weights, vectors);
      int64_t d = 0;
      for (; d + 64 <= a.value_dim; d += 64) add_values<T, 4>(a, r, weights, factor, d);
      for (; d < a.value_dim; d += 16) add_values<T, 1>(a, r, weights, factor, d);
    }
  }
}

}  // namespace
}  // namespace ark::simd
