// Attention in Precision::kBF16Tiles over pages of bf16: a span's keys at once, in chunks of 32 from its first key on.
//
// Per row: scores, as a product's sums, of the query rounded to bf16 over chunks of 32 dimensions; the largest of those
// that it sees; their weights exp(score - largest), summed up by lanes of sixteen and the tree; then, as a product's
// sums over chunks of 32 keys, of the weights rounded to bf16 times the values. A key that a row does not see has
// weight 0, and may as well not be there: sums begin with +0, which a zero of either sign leaves as it is.
//
// P: how products are made.
//   P(keys)                      gathers the keys and values
//   kRows                        rows at a time, at most
//   score(row, n, chunks)        scores of so many rows from `row` on
//   scores(r)                    of the r-th of these, by keys' numbers in the span: chunks' whole vectors
//   weigh(r, chunk, low, high)   takes the 32 weights of a chunk
//   add(row, n, chunks)          sums of weights times values -> a.accumulators
#pragma once

#include "engine/cpu/simd/attention_weights.h"
#include "engine/cpu/simd/dot_matmul.h"

namespace ark::simd {
namespace {

constexpr int64_t kChunkKeys = 32;

// Numbers from a beginning on: [first, last).
using Chunks = Seen;

// The keys of a call, numbered from a.span_first on.
struct SpanKeys {
  explicit SpanKeys(const AttentionRows& call)
      : a(call),
        first(std::max<int64_t>(0, call.first_page * call.page_size - call.span_first)),
        last(std::min(call.last_page * call.page_size, call.at[call.rows - 1] + int64_t{1}) -
             call.span_first) {}
  bool has(int64_t key) const { return key >= first && key < last; }
  Chunks chunks() const { return {first / kChunkKeys, (last + kChunkKeys - 1) / kChunkKeys}; }
  Seen seen(int64_t row) const {
    const int64_t own = a.at[row] - a.span_first;
    return {std::max(first, a.window > 0 ? own - a.window + 1 : 0), std::min(last, own + 1)};
  }
  // Of a key that is there: the first dimension's element, whose next are a page's size apart.
  const uint16_t* key(int64_t key) const {
    const int64_t at = a.span_first + key, page = a.table[at / a.page_size];
    return reinterpret_cast<const uint16_t*>(a.keys + page * a.key_stride) + at % a.page_size;
  }
  const uint16_t* value(int64_t key) const {
    const int64_t at = a.span_first + key, page = a.table[at / a.page_size];
    return reinterpret_cast<const uint16_t*>(a.values + page * a.value_stride) +
           at % a.page_size * a.value_dim;
  }

  const AttentionRows& a;
  int64_t first, last;
};

// Scores of the r-th row -> those of the softmax, -infinity where it sees no key. Returns vectors' largest.
template <class T>
typename T::V finish_row(const AttentionRows& a, int64_t row, Seen keys, Chunks chunks, float* scores) {
  const int64_t begin = std::min(keys.first / 16, 2 * chunks.last),
                end = keys.first < keys.last ? (keys.last + 15) / 16 : begin;
  const auto is_unseen = [&](int64_t from, int64_t to) {
    for (int64_t v = from; v < to; ++v) T::store(scores + v * 16, T::set(-INFINITY));
  };
  is_unseen(2 * chunks.first, begin);
  typename T::V largest = T::set(-INFINITY);
  for (int64_t v = begin; v < end; ++v) {
    typename T::V score = T::load(scores + v * 16);
    if (!(a.softcap > 0) && !a.slopes && keys.first <= v * 16 && v * 16 + 16 <= keys.last)
      score = T::mul(score, T::set(a.scale));
    else
      score = finish<T>(a, row, a.span_first + v * 16, {keys.first - v * 16, keys.last - v * 16}, score);
    largest = T::max(largest, score);
    T::store(scores + v * 16, score);
  }
  is_unseen(end, 2 * chunks.last);
  return largest;
}

template <class T, class P>
void weigh_rows(const AttentionRows& a, const SpanKeys& keys, int64_t row, int n, Chunks chunks,
                P& products) {
  using V = typename T::V;
  V each[16];
#pragma GCC unroll 16
  for (V& v : each) v = T::zero();
  alignas(64) float largest[16], sums[16];
  for (int r = 0; r < n; ++r)
    each[r] = finish_row<T>(a, row + r, keys.seen(row + r), chunks, products.scores(r));
  if constexpr (P::kRows == 1)
    largest[0] = T::largest(each[0]);
  else
    T::store(largest, T::largest_each(each));
  for (int r = 0; r < n; ++r) {
    // Where every score was -infinity, so are all differences, and weights are 0.
    const V most = T::set(largest[r] == -INFINITY ? 0 : largest[r]);
    const float* const scores = products.scores(r);
    V sum = T::zero();
    for (int64_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
      const V low = exp<T>(T::sub(T::load(scores + chunk * kChunkKeys), most)),
              high = exp<T>(T::sub(T::load(scores + chunk * kChunkKeys + 16), most));
      sum = T::add(T::add(sum, low), high);
      products.weigh(r, chunk, low, high);
    }
    each[r] = sum;
    a.maxima[row + r] = largest[r];
  }
  if constexpr (P::kRows == 1)
    sums[0] = T::sum(each[0]);
  else
    T::store(sums, T::sum_each(each));
  std::copy_n(sums, n, a.sums + row);
}

template <class T, class P>
void attend_span(const AttentionRows& a, const SpanKeys& keys, P& products) {
  for (int64_t row = 0, n; row < a.rows; row += n) {
    n = std::min<int64_t>(P::kRows, a.rows - row);
    const int64_t first = std::min(keys.seen(row).first, keys.last),
                  last = std::max(keys.seen(row + n - 1).last, first);
    const Chunks chunks{first / kChunkKeys, (last + kChunkKeys - 1) / kChunkKeys};
    products.score(row, static_cast<int>(n), chunks);
    weigh_rows<T>(a, keys, row, static_cast<int>(n), chunks, products);
    products.add(row, static_cast<int>(n), chunks);
  }
}

// Without instructions of their own: keys as [vector][dimension][16], values as [key][dimension], widened.
template <class T>
class AttentionChains {
 public:
  using V = typename T::V;
  static constexpr int kRows = 1;

  explicit AttentionChains(const SpanKeys& keys)
      : a_(keys.a),
        span_(keys),
        query_(a_.room),
        scores_(query_ + padded(a_.key_dim)),
        keys_(scores_ + whole(keys.last)),
        values_(keys_ + whole(keys.last) * a_.key_dim) {
    for (int64_t k = keys.first; k < keys.last; ++k) {
      const uint16_t* const key = keys.key(k);
      for (int64_t d = 0; d < a_.key_dim; ++d)
        keys_[(k / 16 * a_.key_dim + d) * 16 + k % 16] = bf16_to_f32(key[d * a_.page_size]);
      const uint16_t* const value = keys.value(k);
      for (int64_t d = 0; d < a_.value_dim; ++d)
        values_[k * padded(a_.value_dim) + d] = bf16_to_f32(value[d]);
    }
  }
  static int64_t whole(int64_t keys) { return (keys + kChunkKeys - 1) / kChunkKeys * kChunkKeys; }
  static int64_t padded(int64_t dim) { return (dim + 15) / 16 * 16; }

  float* scores(int) const { return scores_; }
  void score(int64_t row, int, Chunks chunks) {
    const FlushDenormals mode;
    for (int64_t d = 0; d < a_.key_dim; ++d) query_[d] = through_bf16(a_.queries[row][d]);
    for (int64_t v = 2 * chunks.first; v < 2 * chunks.last; ++v) {
      V sum = T::zero();
      for (int64_t first = 0; first < a_.key_dim; first += kChunkKeys) {
        V half[2] = {T::zero(), T::zero()};
        for (int64_t d = first; d < std::min(first + kChunkKeys, a_.key_dim); ++d)
          half[d % 2] = T::fma(T::set(query_[d]), T::load(keys_ + (v * a_.key_dim + d) * 16), half[d % 2]);
        sum = T::add(sum, T::add(half[0], half[1]));
      }
      T::store(scores_ + v * 16, sum);
    }
  }
  void weigh(int, int64_t chunk, V low, V high) {
    float* const to = scores_ + chunk * kChunkKeys;
    T::store(to, low);
    T::store(to + 16, high);
    for (int64_t i = 0; i < kChunkKeys; ++i) to[i] = through_bf16(to[i]);
  }
  void add(int64_t row, int, Chunks chunks) {
    const FlushDenormals mode;
    const Seen seen = span_.seen(row);
    for (int64_t d = 0; d < a_.value_dim; d += 16) {
      V sum = T::zero();
      for (int64_t chunk = chunks.first; chunk < chunks.last; ++chunk) {
        V half[2] = {T::zero(), T::zero()};
        const int64_t first = std::max(seen.first, chunk * kChunkKeys),
                      last = std::min(seen.last, (chunk + 1) * kChunkKeys);
        for (int64_t k = first; k < last; ++k)
          half[k % 2] =
              T::fma(T::set(scores_[k]), T::load(values_ + k * padded(a_.value_dim) + d), half[k % 2]);
        sum = T::add(sum, T::add(half[0], half[1]));
      }
      T::store_partial(a_.accumulators + row * a_.value_dim + d, sum,
                       static_cast<int>(std::min<int64_t>(16, a_.value_dim - d)));
    }
  }

 private:
  const AttentionRows& a_;
  const SpanKeys& span_;
  float *query_, *scores_, *keys_, *values_;
};

template <class T>
void attention_bf16_tiles(const AttentionRows& a) {
  const SpanKeys keys(a);
  AttentionChains<T> chains(keys);
  attend_span<T>(a, keys, chains);
}

}  // namespace
}  // namespace ark::simd
