#include <algorithm>
#include <cmath>

#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"
#include "importer/fold/array.h"

namespace ark::fold {
namespace {

// One operator on arrays of one size; nullopt where integers would become reals.
template <typename Index>
Results elementwise(const Call& c, Array y, Index index) {
  const pointwise::Row& row = *pointwise::row_of(c.node.op);
  const auto [p, q] = pointwise::parameters_of(row, c.attributes());
  const bool truth = row.result == pointwise::Result::kBool, real = c.in[0].real;
  if (!real && !truth && row.domain == pointwise::Domain::kReal) return std::nullopt;
  const Array& b = c.in.back();
  if (b.real != real) return std::nullopt;
  pointwise::visit(c.node.op, [&, p = p, q = q](auto op) {
    using O = decltype(op);
    for (int64_t i = 0; i < y.size(); ++i) {
      const auto [ia, ib] = index(i);
      if (!real) {
        if constexpr (pointwise::kComputes<O, int64_t>)
          y.ints[i] = pointwise::compute<O, int64_t>(c.in[0].integer(ia), b.integer(ib), p, q);
      } else if constexpr (pointwise::kComputes<O, double>) {
        const double result = pointwise::compute<O, double>(c.in[0].number(ia), b.number(ib), p, q);
        if (truth)
          y.ints[i] = result != 0;
        else
          y.reals[i] = result;
      }
    }
  });
  return {{std::move(y)}};
}

Results unary(const Call& c) {
  const bool truth = pointwise::row_of(c.node.op)->result == pointwise::Result::kBool;
  return elementwise(c, Array::zeros(c.in[0].dims, c.in[0].real && !truth),
                     [](int64_t i) { return std::pair(i, i); });
}

Results cast(const Call& c) {
  const Array& x = c.in[0];
  const bool real = is_floating(c.types[0]);
  if (x.real == real) {
    Array y = x;  // narrow() rounds
    if (c.types[0] == DType::kBool)
      for (int64_t& v : y.ints) v = v != 0;
    return {{std::move(y)}};
  }
  Array y = Array::zeros(x.dims, real);
  for (int64_t i = 0; i < x.size(); ++i) {
    const auto k = static_cast<std::size_t>(i);
    if (real)
      y.reals[k] = x.number(i);
    else if (c.types[0] == DType::kBool)
      y.ints[k] = x.number(i) != 0;
    else if (!(std::fabs(x.number(i)) < 9.2e18))
      return std::nullopt;  // NaN and what does not fit: the kernel's business
    else
      y.ints[k] = x.integer(i);
  }
  return {{std::move(y)}};
}

// What ONNX leaves open is left to the kernel.
bool is_open(const Call& c) {
  const Op op = c.node.op;
  const auto& b = c.in[1].ints;
  const auto any = [&](auto bad) { return std::any_of(b.begin(), b.end(), bad); };
  if (op == Op::kDiv || op == Op::kMod) return any([](int64_t n) { return n == 0; });
  if (op == Op::kPow) return any([](int64_t n) { return n < 0 || n > 63; });
  return op == Op::kBitShift && c.types[0] == DType::kU64;
}

Results binary(const Call& c) {
  if (is_open(c)) return std::nullopt;
  const Dims dims = broadcast_dims(c, c.in[0].dims, c.in[1].dims);
  const auto ia = broadcast_index(c.in[0].dims, dims), ib = broadcast_index(c.in[1].dims, dims);
  const bool truth = pointwise::row_of(c.node.op)->result == pointwise::Result::kBool;
  return elementwise(c, Array::zeros(dims, c.in[0].real && !truth),
                     [&](int64_t i) { return std::pair(ia[i], ib[i]); });
}

Results where(const Call& c) {
  const Array &condition = c.in[0], &a = c.in[1], &b = c.in[2];
  const Dims dims = broadcast_dims(c, condition.dims, broadcast_dims(c, a.dims, b.dims));
  const auto ic = broadcast_index(condition.dims, dims), ia = broadcast_index(a.dims, dims),
             ib = broadcast_index(b.dims, dims);
  Array y = Array::zeros(dims, a.real);
  for (std::size_t i = 0; i < ic.size(); ++i) {
    const bool yes = condition.integer(ic[i]) != 0;
    if (a.real)
      y.reals[i] = yes ? a.number(ia[i]) : b.number(ib[i]);
    else
      y.ints[i] = yes ? a.integer(ia[i]) : b.integer(ib[i]);
  }
  return {{std::move(y)}};
}

Results clip(const Call& c) {
  Array y = c.in[0];
  for (const std::size_t bound : {std::size_t{1}, std::size_t{2}}) {
    if (!c.has(bound)) continue;
    if (c.in[bound].size() != 1) c.fail("the bounds of Clip must be scalars");
    const double real = c.in[bound].number(0);
    const int64_t integer = c.in[bound].integer(0);
    for (double& x : y.reals) x = bound == 1 ? std::max(x, real) : std::min(x, real);
    for (int64_t& x : y.ints) x = bound == 1 ? std::max(x, integer) : std::min(x, integer);
  }
  return {{std::move(y)}};
}

}  // namespace

Evaluator pointwise_evaluator(Op op) {
  switch (op) {
    case Op::kCast:
      return cast;
    case Op::kWhere:
      return where;
    case Op::kClip:
      return clip;
    default:
      return is_unary_pointwise(op) ? unary : is_binary_pointwise(op) ? binary : nullptr;
  }
}

}  // namespace ark::fold
