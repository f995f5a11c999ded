// Pages of keys and values against the query rows of one KV head.
//
// Per (row, key) one FMA chain over the key's dimensions, then times the key's scale where its type has one; keys lie
// transposed in their page, so that sixteen keys share a vector. Per page and row: new maximum, old state scaled by
// exp(old - new), sum of the page's weights by the sixteen-lane tree, one FMA chain per value dimension in ascending
// key order, of weights times the values' scales. Nothing depends on which other rows, pages or later keys are there.
// Online softmax: arXiv:1805.02867.
//
// Some pages are taken together, which changes no bit: their keys are scored, then all their scores become weights,
// then their values are added up. While the keys are read the values are fetched from memory, and the other way round.
#pragma once

#include <algorithm>
#include <utility>

#include "engine/cpu/simd/attention_weights.h"

namespace ark::simd {
namespace {

// What is added up: of the rows from `row` on, which a Weighing is about, `first` and those after it; of a group's
// pages [page, last_page).
struct Part {
  int64_t row;
  int first, page, last_page;
};

// Per page: acc = acc * factor + sum of weight_j value_j, ascending j, for R rows that see the same keys; C vectors of
// the value's dimensions from d on.
template <class T, class K, int R, int C, int W, class A>
void add_values(const AttentionRows& a, const PageGroup<K>& pages, const Weighing<W>& w, const Part& part,
                int64_t stride, int64_t d, A ahead) {
  using V = typename T::V;
  const int first = part.first;
  float* out = a.accumulators + (part.row + first) * a.value_dim + d;
  const int64_t page_room = AttentionRows::page_room(a.page_size);
  const int lanes = static_cast<int>(std::min<int64_t>(16, a.value_dim - d));
  const auto load = [&](const float* p) {
    return C > 1 || lanes == 16 ? T::load(p) : T::load_partial(p, lanes);
  };
  V acc[R][C];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = load(out + r * a.value_dim + c * 16);
  }
  for (int p = part.page; p < part.last_page; ++p) {
    const Seen keys = w.keys[p][first];
    if (keys.first >= keys.last) continue;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const V factor = T::set(w.factors[p][first + r]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = T::mul(acc[r][c], factor);
    }
    const auto* v = pages.values[p] + keys.first * a.value_dim + d;
    const float* weights[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) weights[r] = a.room + (first + r) * stride + p * page_room;
    for (int64_t j = keys.first; j < keys.last;) {
      ahead.turn();
      for (const int64_t end = std::min(j + A::kSteps, keys.last); j < end; ++j, v += a.value_dim) {
        V value[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c)
          value[c] =
              C > 1 || lanes == 16 ? K::template load<T>(v + c * 16) : load_some<T, K>(v + c * 16, lanes);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const V weight = T::set(weights[r][j]);
#pragma GCC unroll 4
          for (int c = 0; c < C; ++c) acc[r][c] = T::fma(weight, value[c], acc[r][c]);
        }
      }
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

template <class T, class K, int R, int W, class A>
void add_pages(const AttentionRows& a, const PageGroup<K>& pages, const Weighing<W>& w, const Part& part,
               int64_t stride, A& ahead) {
  int64_t d = 0;
  for (; d + 64 <= a.value_dim; d += 64)
    add_values<T, K, R, 4>(a, pages, w, part, stride, d, std::exchange(ahead, {}));
  for (; d < a.value_dim; d += 16)
    add_values<T, K, R, 1>(a, pages, w, part, stride, d, std::exchange(ahead, {}));
}

template <class T, class K, int R, int W, class A>
void add_rows(const AttentionRows& a, const PageGroup<K>& pages, const Weighing<W>& w, Part part,
              int64_t stride, A& ahead);

template <class T, class K, int R, int W, class A>
void add_halves(const AttentionRows& a, const PageGroup<K>& pages, const Weighing<W>& w, Part part,
                int64_t stride, A& ahead) {
  constexpr int kFirst = (R + 1) / 2;
  add_rows<T, K, kFirst>(a, pages, w, part, stride, ahead);
  part.first += kFirst;
  add_rows<T, K, R - kFirst>(a, pages, w, part, stride, ahead);
}

// The same for R rows of which some may see other keys than others: about the diagonal, and where a window begins.
template <class T, class K, int R, int W, class A>
void add_rows(const AttentionRows& a, const PageGroup<K>& pages, const Weighing<W>& w, Part part,
              int64_t stride, A& ahead) {
  if constexpr (R == 1) {
    add_pages<T, K, 1>(a, pages, w, part, stride, ahead);
  } else if constexpr (R > T::kAttentionRows) {
    add_halves<T, K, R>(a, pages, w, part, stride, ahead);
  } else {
    const auto agree = [&](int page) {
      const Seen* keys = w.keys[page] + part.first;
      return std::all_of(keys, keys + R, [&](Seen s) { return s == *keys; });
    };
    for (const int last = part.last_page; part.page < last; part.page = part.last_page) {
      const bool together = agree(part.page);
      part.last_page = part.page + 1;
      while (together && part.last_page < last && agree(part.last_page)) ++part.last_page;
      if (together)
        add_pages<T, K, R>(a, pages, w, part, stride, ahead);
      else
        add_halves<T, K, R>(a, pages, w, part, stride, ahead);
    }
  }
}

// R rows from `row` on. What `values` and `next` name is fetched meanwhile.
template <class T, class K, int R, class A = Ahead<T, typename K::Element>>
void attend(const AttentionRows& a, int64_t row, const PageGroup<K>& pages, A values, A next) {
  const int64_t stride = AttentionRows::kPages * AttentionRows::page_room(a.page_size);
  score_pages<T, K, R>(a, row, pages, stride, values);
  Weighing<R> w;
  const Part all{row, 0, 0, pages.count};
  if constexpr (R > 1 && R <= T::kAttentionRows) {
    if (are_plain(a, row, R, pages)) {
      weigh_pages<T, K, R, true>(a, row, pages, stride, w);
      for (auto& keys : w.keys) keys[0] = {0, a.page_size};
      return add_pages<T, K, R>(a, pages, w, all, stride, next);
    }
  }
  weigh_pages<T, K, R, false>(a, row, pages, stride, w);
  add_rows<T, K, R>(a, pages, w, all, stride, next);
}

template <class T, class K, class A = Ahead<T, typename K::Element>>
void attend_rows(const AttentionRows& a, const PageGroup<K>& pages, A values, A next) {
  constexpr int kRows = T::kScoreRows;
  static_assert(kRows <= AttentionRows::kTogether && kRows <= 4, "fewer than that are left over below");
  for (int64_t row = 0, n; row < a.rows; row += n, values = next = {}) {
    n = std::min<int64_t>(kRows, a.rows - row);
    if (n == kRows)
      attend<T, K, kRows>(a, row, pages, values, next);
    else if (n == 3)
      attend<T, K, 3>(a, row, pages, values, next);
    else if (n == 2)
      attend<T, K, 2>(a, row, pages, values, next);
    else
      attend<T, K, 1>(a, row, pages, values, next);
  }
}

template <class T, class K>
void attend_all(const AttentionRows& a) {
  PageGroup<K> pages = group_of<K>(a, a.first_page);
  while (pages.count > 0) {
    const PageGroup<K> next = group_of<K>(a, pages.first + pages.count);
    attend_rows<T, K>(a, pages, {pages.values, pages.count, a.page_size * a.value_dim, a.key_dim},
                      {next.keys, next.count, a.page_size * a.key_dim, pages.count * a.page_size});
    pages = next;
  }
}

template <class T>
void attention(const AttentionRows& a) {
  with_kv(a.stored, [&](auto type) { attend_all<T, decltype(type)>(a); });
}

}  // namespace
}  // namespace ark::simd
