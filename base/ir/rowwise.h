// The operators over whole rows along one axis: one row of a table and one function each. Plain kernels and folding,
// the CPU loop (scalar and vectors) and the CUDA loop compute these functions; shapes, splits over ranks, names and
// attributes (`axis`, and a parameter) come from the table. To add one: its name in base/ir/ops.h, a struct here, its
// place in All, and how ONNX writes it in importer/ops.
//
// A function is given a row R of n >= 1 elements x and as many y:
//   R::F              the number type of an element (base/ir/pointwise.h); R::Value: what a parameter is
//   sum(f), max(f)    of f(x) over the row, as Value, in an order of the executor's own; of NaN a sum is one
//   set(f)            y = f(x); the last thing that a function does
// It goes over x as often as `passes` says, whatever is in it.
//
// Device code includes this file: nothing of std, C++17.
#pragma once

#include "base/ir/pointwise.h"

namespace ark::rowwise {

struct Row {
  Op op;
  const char* name;
  int passes;
  pointwise::Parameter p{};
};

template <class R>
using Value = typename R::Value;

struct Softmax {
  static constexpr Row row{Op::kSoftmax, "Softmax", 3};
  template <class R, class F = typename R::F>
  ARK_NUMERIC static void of(R& r, Value<R>) {
    const F top(r.max([](F x) { return x; }));
    const F sum(r.sum([=](F x) { return exp(x - top); }));
    r.set([=](F x) { return exp(x - top) / sum; });
  }
};

struct LogSoftmax {
  static constexpr Row row{Op::kLogSoftmax, "LogSoftmax", 3};
  template <class R, class F = typename R::F>
  ARK_NUMERIC static void of(R& r, Value<R>) {
    const F top(r.max([](F x) { return x; }));
    const F log_sum = log(F(r.sum([=](F x) { return exp(x - top); })));
    r.set([=](F x) { return x - top - log_sum; });
  }
};

struct LpNorm {  // a row of zeros stays one
  static constexpr Row row{Op::kLpNorm, "LpNorm", 2, {"p", 2, pointwise::kInt}};
  template <class R, class F = typename R::F>
  ARK_NUMERIC static void of(R& r, Value<R> p) {
    const F norm = p == 1 ? F(r.sum([](F x) { return abs(x); })) : sqrt(F(r.sum([](F x) { return x * x; })));
    r.set([=](F x) { return select(norm > 0, x / norm, norm); });
  }
};

using All = pointwise::List<Softmax, LogSoftmax, LpNorm>;

}  // namespace ark::rowwise
