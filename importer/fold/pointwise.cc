#include <cmath>

#include "base/ir/keys.h"
#include "base/ir/pointwise_math.h"
#include "importer/fold/array.h"

namespace ark::fold {
namespace {

Results unary(const Call& c) {
  const Op op = c.node.op;
  const auto [p, q] = pointwise::parameters_of(op, c.attributes());
  Array y = c.in[0];
  for (double& x : y.reals) x = pointwise::unary<double>(op, x, p, q);
  const bool integers = op == Op::kIdentity || op == Op::kNeg || op == Op::kAbs || op == Op::kSign ||
                        op == Op::kRelu || op == Op::kNot || op == Op::kBitNot;
  if (!y.ints.empty() && !integers) return std::nullopt;
  for (int64_t& x : y.ints) x = pointwise::unary<int64_t>(op, x, 0, 0);
  return {{std::move(y)}};
}

Results test(const Call& c) {  // IsNaN, IsInf
  const Array& x = c.in[0];
  Array y = Array::zeros(x.dims, false);
  const auto [p, q] = pointwise::parameters_of(c.node.op, c.attributes());
  for (int64_t i = 0; i < x.size(); ++i)
    y.ints[i] = pointwise::unary<double>(c.node.op, x.number(i), p, q) != 0;
  return {{std::move(y)}};
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

std::optional<int64_t> int_binary(const Call& c, int64_t a, int64_t b) {
  const Op op = c.node.op;
  if ((op == Op::kDiv || op == Op::kMod) && b == 0) return std::nullopt;
  if (op == Op::kPow && (b < 0 || b > 63)) return std::nullopt;
  if (op == Op::kBitShift) {  // of unsigned integers only
    const auto bits = static_cast<uint64_t>(a);
    if (b < 0 || b > 63) return 0;
    return static_cast<int64_t>(c.attributes().get(key::kLeft) ? bits << b : bits >> b);
  }
  return pointwise::binary<int64_t>(op, a, b, c.attributes().get_or(key::kFmod, 0));
}

Results compare(const Call& c) {
  const Array &a = c.in[0], &b = c.in[1];
  const Dims dims = broadcast_dims(c, a.dims, b.dims);
  const auto ia = broadcast_index(a.dims, dims), ib = broadcast_index(b.dims, dims);
  Array y = Array::zeros(dims, false);
  for (std::size_t i = 0; i < ia.size(); ++i)
    y.ints[i] = a.real ? pointwise::compares(c.node.op, a.number(ia[i]), b.number(ib[i]))
                       : pointwise::compares(c.node.op, a.integer(ia[i]), b.integer(ib[i]));
  return {{std::move(y)}};
}

Results binary(const Call& c) {
  const Array &a = c.in[0], &b = c.in[1];
  const Dims dims = broadcast_dims(c, a.dims, b.dims);
  const auto ia = broadcast_index(a.dims, dims), ib = broadcast_index(b.dims, dims);
  Array y = Array::zeros(dims, a.real);
  for (std::size_t i = 0; i < ia.size(); ++i) {
    if (a.real) {
      y.reals[i] = pointwise::binary<double>(c.node.op, a.number(ia[i]), b.number(ib[i]),
                                             c.attributes().get_or(key::kFmod, 0));
    } else {
      const auto v = b.real ? std::nullopt : int_binary(c, a.integer(ia[i]), b.integer(ib[i]));
      if (!v) return std::nullopt;
      y.ints[i] = *v;
    }
  }
  return {{std::move(y)}};
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
    case Op::kIsNaN:
    case Op::kIsInf:
      return test;
    case Op::kCast:
      return cast;
    case Op::kEqual:
    case Op::kLess:
    case Op::kLessOrEqual:
    case Op::kGreater:
    case Op::kGreaterOrEqual:
      return compare;
    case Op::kWhere:
      return where;
    case Op::kClip:
      return clip;
    default:
      return is_unary_pointwise(op) ? unary : is_binary_pointwise(op) ? binary : nullptr;
  }
}

}  // namespace ark::fold
