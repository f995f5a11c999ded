// The first half of attention.h: scores of pages' keys, and the weights that come of them.
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

// Pages [first, first + count) of the sequence.
template <class K>
struct PageGroup {
  static constexpr int kMost = AttentionRows::kPages;
  int64_t first = 0;
  int count = 0;
  const typename K::Element *keys[kMost], *values[kMost];
  const float *key_scales[kMost], *value_scales[kMost];
};

template <class K>
PageGroup<K> group_of(const AttentionRows& a, int64_t first) {
  PageGroup<K> g;
  g.first = first;
  g.count = static_cast<int>(std::clamp<int64_t>(a.last_page - first, 0, g.kMost));
  const int64_t key_codes = K::kCodec.format.code_bytes(a.page_size, a.key_dim),
                value_codes = K::kCodec.format.code_bytes(a.page_size, a.value_dim);
  for (int i = 0; i < g.count; ++i) {
    const int64_t page = a.table[first + i];
    const std::byte* const keys = a.keys + page * a.key_stride;
    const std::byte* const values = a.values + page * a.value_stride;
    g.keys[i] = reinterpret_cast<const typename K::Element*>(keys);
    g.values[i] = reinterpret_cast<const typename K::Element*>(values);
    g.key_scales[i] = reinterpret_cast<const float*>(keys + key_codes);
    g.value_scales[i] = reinterpret_cast<const float*>(values + value_codes);
  }
  return g;
}

// Fetches some pages' parts into the second-level cache, little by little while something else is computed in so many
// steps.
template <class T, class E>
class Ahead {
 public:
  static constexpr int64_t kSteps = 4;  // between two turns
  Ahead() = default;
  Ahead(const E* const* parts, int count, int64_t elements, int64_t steps)
      : parts_(parts),
        count_(count),
        all_(elements * int64_t{sizeof(E)}),
        a_turn_(all_ * kSteps / steps + 1) {}
  void turn() {
    for (end_ = std::min(end_ + a_turn_, all_); next_ < end_; next_ += 64) {
      for (int i = 0; i < count_; ++i) T::prefetch_l2(reinterpret_cast<const char*>(parts_[i]) + next_);
    }
  }

 private:
  const E* const* parts_ = nullptr;
  int count_ = 0;
  int64_t all_ = 0, a_turn_ = 0, next_ = 0, end_ = 0;
};

// Sixteen keys of a page: dimension d of key j at keys[d * page_size + j].
template <class K>
struct KeyVector {
  const typename K::Element* keys;
  int lanes;
  float* scores;        // of the first row
  const float* scales;  // of the keys, if they have such
};

// scores[r][j] = q_r . k_j for R rows and C vectors of keys; rows' scores lie `stride` apart.
template <class T, class K, int R, int C, bool kWhole, class A>
void score_keys(const AttentionRows& a, int64_t row, const KeyVector<K>* vectors, int64_t stride, A ahead) {
  const int64_t dim = a.key_dim, size = a.page_size;
  const typename K::Element* keys[C];
  const float* queries[R];
  typename T::V acc[R][C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) keys[c] = vectors[c].keys;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    queries[r] = a.queries[row + r];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = T::zero();
  }
  for (int64_t d = 0, at = 0; d < dim;) {
    ahead.turn();
    for (const int64_t end = std::min(d + A::kSteps, dim); d < end; ++d, at += size) {
      typename T::V k[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c)
        k[c] = kWhole ? K::template load<T>(keys[c] + at) : load_some<T, K>(keys[c] + at, vectors[c].lanes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const typename T::V q = T::set(queries[r][d]);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) acc[r][c] = T::fma(q, k[c], acc[r][c]);
      }
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
template <class T, class K, int R, class A>
void score_pages(const AttentionRows& a, int64_t row, const PageGroup<K>& pages, int64_t stride, A ahead) {
  constexpr int C = T::kAttentionVectors;
  const auto size = static_cast<int>(a.page_size), a_page = (size + 15) / 16;
  const int count = pages.count * a_page;
  KeyVector<K> vectors[C];
  for (int v = 0, n; v < count; v += n) {
    n = size % 16 == 0 && v + C <= count ? C : 1;
    for (int c = 0; c < n; ++c) {
      const int key = (v + c) % a_page * 16, page = (v + c) / a_page;
      vectors[c] = {pages.keys[page] + key, std::min(16, size - key), a.room + (v + c) * 16,
                    pages.key_scales[page] + key};
    }
    if (size % 16 != 0)
      score_keys<T, K, R, 1, false>(a, row, vectors, stride, ahead);
    else if (n == C)
      score_keys<T, K, R, C, true>(a, row, vectors, stride, ahead);
    else
      score_keys<T, K, R, 1, true>(a, row, vectors, stride, ahead);
    ahead = {};
  }
}

// The keys of a page that a row sees.
struct Seen {
  int64_t first, last;
  bool operator==(const Seen&) const = default;
};
inline Seen seen(const AttentionRows& a, int64_t row, int64_t page) {
  const int64_t own = a.at[row] - page * a.page_size;
  return {a.window > 0 ? std::clamp<int64_t>(own - a.window + 1, 0, a.page_size) : 0,
          std::clamp<int64_t>(own + 1, 0, a.page_size)};
}

// Of R rows and some pages: the keys that are seen, and what the accumulator is multiplied by before they are added.
template <int R>
struct Weighing {
  static_assert(R <= 4 && AttentionRows::kPages == 4, "a page and row is one of sixteen lanes");
  Seen keys[AttentionRows::kPages][R];
  alignas(64) float factors[AttentionRows::kPages][4];
};

// Whether pages and rows are as most of a prompt's: four pages of a vector each whose keys the rows all see, and scores
// that are only scaled.
template <class K>
bool are_plain(const AttentionRows& a, int64_t row, int rows, const PageGroup<K>& pages) {
  const int64_t last = (pages.first + pages.count) * a.page_size - 1;
  return pages.count == pages.kMost && a.page_size == 16 && a.window == 0 && !(a.softcap > 0) && !a.slopes &&
         std::all_of(a.at + row, a.at + row + rows, [&](int32_t at) { return at >= last; });
}

// Scores of sixteen keys from `key` on -> those of the softmax, -infinity where the row does not see one; of these it
// sees [seen.first, seen.last), which may reach beyond them.
template <class T>
typename T::V finish(const AttentionRows& a, int64_t row, int64_t key, Seen seen, typename T::V score) {
  static constexpr float kLane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const auto bound = [](int64_t x) { return static_cast<int>(x < 0 ? 0 : x > 16 ? 16 : x); };
  score = T::mul(score, T::set(a.scale));
  if (a.softcap > 0) score = T::mul(T::set(a.softcap), tanh<T>(T::div(score, T::set(a.softcap))));
  if (a.slopes) {
    const auto first = static_cast<float>(key - a.at[row]);
    score = T::fma(T::set(a.slopes[row]), T::add(T::load(kLane), T::set(first)), score);
  }
  if (seen.first <= 0 && seen.last >= 16) return score;
  return T::select(T::lanes(bound(seen.first), bound(seen.last)), score, T::set(-INFINITY));
}

// The same of a page. Returns vectors' largest.
template <class T>
typename T::V finish_scores(const AttentionRows& a, int64_t row, int64_t page, Seen keys, float* scores) {
  using V = typename T::V;
  V largest = T::set(-INFINITY);
  for (int64_t k = 0; k < a.page_size; k += 16) {
    const V s =
        finish<T>(a, row, page * a.page_size + k, {keys.first - k, keys.last - k}, T::load(scores + k));
    largest = T::max(largest, s);
    T::store(scores + k, s);
  }
  return largest;
}

// Scores of the pages -> weights of R rows, times the values' scales; updates maxima and sums. Each page and row has
// its lane of a vector where it needs one number. kPlain: they are such, and what that says need not be looked at.
template <class T, class K, int R, bool kPlain>
void weigh_pages(const AttentionRows& a, int64_t row, const PageGroup<K>& pages, int64_t stride,
                 Weighing<R>& w) {
  using V = typename T::V;
  const int64_t size = kPlain ? 16 : a.page_size, page_room = AttentionRows::page_room(size);
  const int count = kPlain ? pages.kMost : pages.count;
  const auto sees_none = [&](int p, int r) { return !kPlain && w.keys[p][r].first >= w.keys[p][r].last; };
  V each[16];
#pragma GCC unroll 16
  for (V& v : each) v = T::set(-INFINITY);
#pragma GCC unroll 4
  for (int p = 0; p < count; ++p) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float* const scores = a.room + r * stride + p * page_room;
      if constexpr (kPlain) {
        each[p * 4 + r] = T::max(each[p * 4 + r], T::mul(T::load(scores), T::set(a.scale)));
      } else {
        w.keys[p][r] = seen(a, row + r, pages.first + p);
        if (!sees_none(p, r))
          each[p * 4 + r] = finish_scores<T>(a, row + r, pages.first + p, w.keys[p][r], scores);
      }
    }
  }
  alignas(64) float maxima[AttentionRows::kPages][4], sums[AttentionRows::kPages][4];
  T::store(maxima[0], T::largest_each(each));
  // What is not seen changes nothing: exp(0) = 1 is exact.
  T::store(w.factors[0], T::zero());
  for (int r = 0; r < R; ++r) {
    float before = a.maxima[row + r];
#pragma GCC unroll 4
    for (int p = 0; p < count; ++p) {
      const float now = before > maxima[p][r] ? before : maxima[p][r];
      if (!sees_none(p, r) && now != -INFINITY) w.factors[p][r] = before - now, before = now;
      maxima[p][r] = now;
    }
    a.maxima[row + r] = before;
  }
  T::store(w.factors[0], exp<T>(T::load(w.factors[0])));
#pragma GCC unroll 16
  for (V& v : each) v = T::zero();
  for (int p = 0; p < count; ++p) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      if (sees_none(p, r)) continue;
      float* const scores = a.room + r * stride + p * page_room;
      V sum = T::zero();
      for (int64_t k = 0; k < size; k += 16) {
        V score = T::load(scores + k);
        if constexpr (kPlain) score = T::mul(score, T::set(a.scale));  // the same once more
        // Where every score so far was -infinity, weights are 0.
        const V weight = maxima[p][r] == -INFINITY ? T::zero() : exp<T>(T::sub(score, T::set(maxima[p][r])));
        sum = T::add(sum, weight);
        if constexpr (K::kCodec.format.has_scales()) {
          const int lanes = static_cast<int>(std::min<int64_t>(16, size - k));
          T::store(scores + k, T::mul(weight, T::load_partial(pages.value_scales[p] + k, lanes)));
        } else {
          T::store(scores + k, weight);
        }
      }
      each[p * 4 + r] = sum;
    }
  }
  T::store(sums[0], T::sum_each(each));
  for (int r = 0; r < R; ++r) {
    float sum = a.sums[row + r];
    for (int p = 0; p < count; ++p)
      if (!sees_none(p, r)) sum = sum * w.factors[p][r] + sums[p][r];
    a.sums[row + r] = sum;
  }
}

}  // namespace
}  // namespace ark::simd
