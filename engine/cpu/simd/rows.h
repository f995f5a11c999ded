// Norms, pointwise operators, sums of partials, argmax over f32 rows.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/ir/pointwise_host.h"
#include "base/ir/rowwise_host.h"
#include "engine/cpu/simd/lanes.h"
#include "engine/cpu/simd/matmul.h"
#include "engine/cpu/simd/table.h"

namespace ark::simd {
namespace {

// Calls f(offset, lanes) for [0, n) in vectors.
template <typename F>
void for_vectors(int64_t n, F f) {
  for (int64_t i = 0; i < n; i += 16) f(i, static_cast<int>(std::min<int64_t>(16, n - i)));
}
template <class T>
typename T::V load_lanes(const float* p, int lanes) {
  return lanes == 16 ? T::load(p) : T::load_partial(p, lanes);
}
template <class T>
void store_lanes(float* p, typename T::V v, int lanes) {
  if (lanes == 16) {
    T::store(p, v);
  } else {
    T::store_partial(p, v, lanes);
  }
}

// Row sums run in sixteen lanes, element i in lane i % 16, ascending; then the lanes' tree.
template <class T>
void norm(const Norm& a) {
  using V = typename T::V;
  const float count = static_cast<float>(a.n);
  float mean = 0;
  if (!a.rms) {
    V sum = T::zero();
    for_vectors(a.n, [&](int64_t i, int lanes) { sum = T::add(sum, load_lanes<T>(a.x + i, lanes)); });
    mean = T::sum(sum) / count;
  }
  V squares = T::zero();
  for_vectors(a.n, [&](int64_t i, int lanes) {
    const V x = load_lanes<T>(a.x + i, lanes);
    const V centred = a.rms ? x : T::select(T::lanes(0, lanes), T::sub(x, T::set(mean)), T::zero());
    squares = T::fma(centred, centred, squares);
  });
  const float inverse = 1.f / std::sqrt(T::sum(squares) / count + a.epsilon);
  for_vectors(a.n, [&](int64_t i, int lanes) {
    V y = load_lanes<T>(a.x + i, lanes);
    if (!a.rms) y = T::sub(y, T::set(mean));
    y = T::mul(y, T::set(inverse));
    if (a.scale) y = T::mul(y, load_lanes<T>(a.scale + i, lanes));
    if (a.bias) y = T::add(y, load_lanes<T>(a.bias + i, lanes));
    store_lanes<T>(a.out + i, y, lanes);
  });
}

template <class T>
void pointwise(Op op, const float* a, const float* b, float p, float q, float* out, int64_t n) {
  pointwise::visit(op, [=](auto function) {
    using O = decltype(function);
    if constexpr (pointwise::is_fusible(O::row)) {
      for (int64_t i = 0; i < n; i += 16) {
        const Lanes<T> x = T::load(a + i);
        T::store(out + i, pointwise::apply<O>(x, O::row.arity == 2 ? Lanes<T>(T::load(b + i)) : x, p, q).v);
      }
    }
  });
}

// A row of base/ir/rowwise.h. Sums and maxima run in sixteen lanes as those of norm().
template <class T>
struct LaneRow {
  using F = Lanes<T>;
  using Value = float;
  using V = typename T::V;
  const float* x;
  float* out;
  int64_t n;

  // f(x) in lanes that the row has, else `other`.
  template <class Fn>
  V at(Fn f, int64_t i, int lanes, float other) const {
    const V v = f(F(load_lanes<T>(x + i, lanes))).v;
    return lanes == 16 ? v : T::select(T::lanes(0, lanes), v, T::set(other));
  }
  template <class Fn>
  float sum(Fn f) const {
    V all = T::zero();
    for_vectors(n, [&](int64_t i, int lanes) { all = T::add(all, at(f, i, lanes, 0)); });
    return T::sum(all);
  }
  template <class Fn>
  float max(Fn f) const {
    V most = T::set(-INFINITY);
    for_vectors(n, [&](int64_t i, int lanes) { most = T::max(at(f, i, lanes, -INFINITY), most); });
    return T::largest(most);
  }
  template <class Fn>
  void set(Fn f) {
    for_vectors(n, [&](int64_t i, int lanes) { store_lanes<T>(out + i, at(f, i, lanes, 0), lanes); });
  }
};

template <class T>
void rowwise(Op op, const float* x, float p, float* out, int64_t n) {
  LaneRow<T> row{x, out, n};
  rowwise::run(op, row, p);
}

// sum(a, b) = sum(a, m) + sum(m, b), m = a + ceil((b - a) / 2).
template <class T>
typename T::V sum_parts(const float* const* parts, int a, int b, int64_t i, int lanes) {
  if (b - a == 1) return load_lanes<T>(parts[a] + i, lanes);
  const int m = a + (b - a + 1) / 2;
  return T::add(sum_parts<T>(parts, a, m, i, lanes), sum_parts<T>(parts, m, b, i, lanes));
}

template <class T>
void add_parts(const float* const* parts, int count, const Epilogue& epilogue, float* out, int64_t n) {
  for_vectors(n, [&](int64_t i, int lanes) {
    finish<T>(sum_parts<T>(parts, 0, count, i, lanes), epilogue, i, 0, out, lanes);
  });
}

template <class T>
int64_t argmax(const float* x, int64_t n) {
  // First the largest value by vectors, then where it stands first.
  typename T::V best = T::set(-INFINITY), nans = T::zero();
  for_vectors(n, [&](int64_t i, int lanes) {
    const typename T::V v =
        lanes == 16 ? T::load(x + i)
                    : T::select(T::lanes(0, lanes), T::load_partial(x + i, lanes), T::set(-INFINITY));
    best = T::max(v, best);
    nans = T::select(T::is_nan(v), v, nans);
  });
  if (std::isnan(T::sum(nans))) return -1;
  const float largest = T::largest(best);
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == largest) return i;
  }
  return 0;
}

}  // namespace
}  // namespace ark::simd
