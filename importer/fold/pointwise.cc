#include <cmath>
#include <limits>

#include "importer/fold/array.h"

namespace ark::fold {
namespace {

double gelu(const Attributes& a, double x) {
  if (a.text_or("approximate", "none") == "tanh")
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
}

std::optional<double> real_unary(Op op, const Attributes& a, double x) {
  switch (op) {
    case Op::kIdentity:
      return x;
    case Op::kNeg:
      return -x;
    case Op::kAbs:
      return std::fabs(x);
    case Op::kSign:
      return (x > 0) - (x < 0);
    case Op::kReciprocal:
      return 1 / x;
    case Op::kSqrt:
      return std::sqrt(x);
    case Op::kRsqrt:
      return 1 / std::sqrt(x);
    case Op::kExp:
      return std::exp(x);
    case Op::kLog:
      return std::log(x);
    case Op::kSin:
      return std::sin(x);
    case Op::kCos:
      return std::cos(x);
    case Op::kTan:
      return std::tan(x);
    case Op::kAsin:
      return std::asin(x);
    case Op::kAcos:
      return std::acos(x);
    case Op::kAtan:
      return std::atan(x);
    case Op::kSinh:
      return std::sinh(x);
    case Op::kCosh:
      return std::cosh(x);
    case Op::kTanh:
      return std::tanh(x);
    case Op::kAsinh:
      return std::asinh(x);
    case Op::kAcosh:
      return std::acosh(x);
    case Op::kAtanh:
      return std::atanh(x);
    case Op::kErf:
      return std::erf(x);
    case Op::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Op::kRelu:
      return x > 0 ? x : x != x ? x : 0;
    case Op::kSilu:
      return x / (1 + std::exp(-x));
    case Op::kSoftplus:
      return x > 30 ? x : std::log1p(std::exp(x));
    case Op::kGelu:
      return gelu(a, x);
    case Op::kQuickGelu:
      return x / (1 + std::exp(-a.real_or("alpha", 1.702) * x));
    case Op::kFloor:
      return std::floor(x);
    case Op::kCeil:
      return std::ceil(x);
    case Op::kRound:
      return std::nearbyint(x);
    default:
      return std::nullopt;
  }
}

std::optional<int64_t> int_unary(Op op, int64_t x) {
  switch (op) {
    case Op::kIdentity:
      return x;
    case Op::kNeg:
      return static_cast<int64_t>(-static_cast<uint64_t>(x));
    case Op::kAbs:
      return x < 0 ? static_cast<int64_t>(-static_cast<uint64_t>(x)) : x;
    case Op::kSign:
      return (x > 0) - (x < 0);
    case Op::kRelu:
      return std::max<int64_t>(x, 0);
    case Op::kNot:
      return x == 0;
    case Op::kBitNot:
      return ~x;
    default:
      return std::nullopt;
  }
}

Results unary(const Call& c) {
  Array y = c.in[0];
  for (double& x : y.reals) {
    const auto v = real_unary(c.node.op, c.attributes(), x);
    if (!v) return std::nullopt;
    x = *v;
  }
  for (int64_t& x : y.ints) {
    const auto v = int_unary(c.node.op, x);
    if (!v) return std::nullopt;
    x = *v;
  }
  return {{std::move(y)}};
}

Results test(const Call& c) {  // IsNaN, IsInf
  const Array& x = c.in[0];
  Array y = Array::zeros(x.dims, false);
  const bool positive = c.attributes().integer_or("detect_positive", 1),
             negative = c.attributes().integer_or("detect_negative", 1);
  for (int64_t i = 0; i < x.size(); ++i) {
    const double v = x.number(i);
    const bool infinite = std::isinf(v) && (v > 0 ? positive : negative);
    y.ints[static_cast<std::size_t>(i)] = c.node.op == Op::kIsNaN ? std::isnan(v) : infinite;
  }
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

int64_t wrap(uint64_t x) { return static_cast<int64_t>(x); }

double real_mod(double a, double b, bool truncating) {
  const double r = std::fmod(a, b);
  return !truncating && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

std::optional<double> real_binary(Op op, const Attributes& at, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      return a / b;
    case Op::kMod:
      return real_mod(a, b, at.integer_or("fmod", 0) != 0);
    case Op::kPow:
      return std::pow(a, b);
    case Op::kMin:
      return a != a || b != b ? a + b : std::min(a, b);
    case Op::kMax:
      return a != a || b != b ? a + b : std::max(a, b);
    case Op::kPRelu:
      return a < 0 ? a * b : a;
    default:
      return std::nullopt;
  }
}

std::optional<int64_t> int_binary(const Call& c, int64_t a, int64_t b) {
  const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  switch (c.node.op) {
    case Op::kAdd:
      return wrap(ua + ub);
    case Op::kSub:
      return wrap(ua - ub);
    case Op::kMul:
      return wrap(ua * ub);
    case Op::kDiv:
      if (b == 0) return std::nullopt;
      return b == -1 ? wrap(-ua) : a / b;
    case Op::kMod: {
      if (b == 0) return std::nullopt;
      const int64_t r = b == -1 ? 0 : a % b;
      return c.attributes().integer_or("fmod", 0) == 0 && r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    case Op::kPow: {
      if (b < 0 || b > 63) return std::nullopt;
      uint64_t p = 1;
      for (int64_t i = 0; i < b; ++i) p *= ua;
      return wrap(p);
    }
    case Op::kMin:
      return std::min(a, b);
    case Op::kMax:
      return std::max(a, b);
    case Op::kAnd:
      return a && b;
    case Op::kOr:
      return a || b;
    case Op::kXor:
      return (a != 0) != (b != 0);
    case Op::kBitAnd:
      return a & b;
    case Op::kBitOr:
      return a | b;
    case Op::kBitXor:
      return a ^ b;
    case Op::kBitShift:
      if (b < 0 || b > 63) return 0;
      return c.attributes().integer("left") ? wrap(ua << b) : wrap(ua >> b);
    default:
      return std::nullopt;
  }
}

template <typename T>
bool compared(Op op, T a, T b) {
  switch (op) {
    case Op::kEqual:
      return a == b;
    case Op::kLess:
      return a < b;
    case Op::kLessOrEqual:
      return a <= b;
    case Op::kGreater:
      return a > b;
    default:
      return a >= b;
  }
}

Results compare(const Call& c) {
  const Array &a = c.in[0], &b = c.in[1];
  const Dims dims = broadcast_dims(c, a.dims, b.dims);
  const auto ia = broadcast_index(a.dims, dims), ib = broadcast_index(b.dims, dims);
  Array y = Array::zeros(dims, false);
  for (std::size_t i = 0; i < ia.size(); ++i)
    y.ints[i] = a.real ? compared(c.node.op, a.number(ia[i]), b.number(ib[i]))
                       : compared(c.node.op, a.integer(ia[i]), b.integer(ib[i]));
  return {{std::move(y)}};
}

Results binary(const Call& c) {
  const Array &a = c.in[0], &b = c.in[1];
  const Dims dims = broadcast_dims(c, a.dims, b.dims);
  const auto ia = broadcast_index(a.dims, dims), ib = broadcast_index(b.dims, dims);
  Array y = Array::zeros(dims, a.real);
  for (std::size_t i = 0; i < ia.size(); ++i) {
    if (a.real) {
      const auto v = real_binary(c.node.op, c.attributes(), a.number(ia[i]), b.number(ib[i]));
      if (!v) return std::nullopt;
      y.reals[i] = *v;
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
