// Pointwise operators: a block of each operand is loaded (broadcast, converted), computed, stored.
#include <cmath>
#include <limits>

#include "engine/cpu/kernels/registry.h"

namespace ark::kernels {
namespace {

constexpr double kSqrtHalf = 0.70710678118654752440;

// One unary operator on a value of compute type C; parameters from the attributes.
template <typename C>
C unary(Op op, C x, C p, C q) {
  if constexpr (std::is_integral_v<C>) {
    using U = std::make_unsigned_t<C>;
    switch (op) {
      case Op::kIdentity:
        return x;
      case Op::kNeg:
        return static_cast<C>(U{0} - static_cast<U>(x));
      case Op::kAbs:
        return x < 0 ? static_cast<C>(U{0} - static_cast<U>(x)) : x;
      case Op::kSign:
        return static_cast<C>((x > 0) - (x < 0));
      case Op::kRelu:
        return x < 0 ? C{0} : x;
      case Op::kNot:
        return x == 0;
      case Op::kBitNot:
        return static_cast<C>(~x);
      case Op::kFloor:
      case Op::kCeil:
      case Op::kRound:
        return x;
      case Op::kIsNaN:
      case Op::kIsInf:
        return 0;
      default:
        return static_cast<C>(
            unary<double>(op, static_cast<double>(x), static_cast<double>(p), static_cast<double>(q)));
    }
  } else {
    const auto sigmoid = [](C v) {
      return v >= 0 ? 1 / (1 + std::exp(-v)) : std::exp(v) / (1 + std::exp(v));
    };
    const auto softplus = [](C v) { return v > 0 ? v + std::log1p(std::exp(-v)) : std::log1p(std::exp(v)); };
    switch (op) {
      case Op::kNeg:
        return -x;
      case Op::kAbs:
        return std::abs(x);
      case Op::kSign:
        return static_cast<C>((x > 0) - (x < 0));
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
        return sigmoid(x);
      case Op::kRelu:
        return x < 0 ? C{0} : x;
      case Op::kSilu:
        return x * sigmoid(x);
      case Op::kSoftplus:
        return softplus(x);
      case Op::kSoftsign:
        return x / (1 + std::abs(x));
      case Op::kSelu:
        return q * (x > 0 ? x : p * std::expm1(x));
      case Op::kElu:
        return x > 0 ? x : p * std::expm1(x);
      case Op::kCelu:
        return std::max(C{0}, x) + std::min(C{0}, p * std::expm1(x / p));
      case Op::kLeakyRelu:
        return x < 0 ? p * x : x;
      case Op::kThresholdedRelu:
        return x > p ? x : C{0};
      case Op::kHardSigmoid:
        return std::max(C{0}, std::min(C{1}, p * x + q));
      case Op::kHardSwish:
        return x * std::max(C{0}, std::min(C{1}, x / 6 + C{0.5}));
      case Op::kMish:
        return x * std::tanh(softplus(x));
      case Op::kGelu:
        if (p != 0)
          return C{0.5} * x * (1 + std::tanh(C(0.79788456080286535588) * (x + C(0.044715) * x * x * x)));
        return C{0.5} * x * (1 + std::erf(x * C(kSqrtHalf)));
      case Op::kQuickGelu:
        return x * sigmoid(p * x);
      case Op::kFloor:
        return std::floor(x);
      case Op::kCeil:
        return std::ceil(x);
      case Op::kRound:
        return std::nearbyint(x);
      case Op::kNot:
        return x == 0;
      case Op::kIsNaN:
        return std::isnan(x);
      case Op::kIsInf:
        return std::isinf(x) && (x > 0 ? q != 0 : p != 0);
      default:
        return x;
    }
  }
}

template <typename C>
C remainder(C a, C b, bool truncated) {
  if constexpr (std::is_integral_v<C>) {
    if (b == 0) return 0;
    if (b == static_cast<C>(-1)) return 0;
    const C r = static_cast<C>(a % b);
    return !truncated && r != 0 && ((r < 0) != (b < 0)) ? static_cast<C>(r + b) : r;
  } else {
    const C r = std::fmod(a, b);
    if (truncated || r != r) return r;
    if (r == 0) return std::copysign(C{0}, b);
    return (r < 0) != (b < 0) ? r + b : r;
  }
}

template <typename C>
C power(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    if (b < 0) return a == 1 ? 1 : a == static_cast<C>(-1) ? (b % 2 ? a : 1) : 0;
    uint64_t result = 1, base = static_cast<uint64_t>(a);
    for (auto n = static_cast<uint64_t>(b); n; n >>= 1, base *= base)
      if (n & 1) result *= base;
    return static_cast<C>(result);
  } else {
    return std::pow(a, b);
  }
}

template <typename C>
C binary(Op op, C a, C b, int64_t flag) {
  if constexpr (std::is_integral_v<C>) {
    using U = std::make_unsigned_t<C>;
    switch (op) {
      case Op::kAdd:
        return static_cast<C>(static_cast<U>(a) + static_cast<U>(b));
      case Op::kSub:
        return static_cast<C>(static_cast<U>(a) - static_cast<U>(b));
      case Op::kMul:
        return static_cast<C>(static_cast<U>(a) * static_cast<U>(b));
      case Op::kDiv:
        return b == 0                                           ? C{0}
               : b == static_cast<C>(-1) && std::is_signed_v<C> ? static_cast<C>(U{0} - static_cast<U>(a))
                                                                : static_cast<C>(a / b);
      case Op::kBitAnd:
        return a & b;
      case Op::kBitOr:
        return a | b;
      case Op::kBitXor:
        return a ^ b;
      case Op::kBitShift:
        if (flag) return b < 0 || b > 63 ? C{0} : static_cast<C>(static_cast<U>(a) << b);
        return b < 0 || b > 63 ? static_cast<C>(a < 0 ? -1 : 0) : static_cast<C>(a >> b);  // keeps the sign
      default:
        break;
    }
  } else {
    switch (op) {
      case Op::kAdd:
        return a + b;
      case Op::kSub:
        return a - b;
      case Op::kMul:
        return a * b;
      case Op::kDiv:
        return a / b;
      default:
        break;
    }
  }
  switch (op) {
    case Op::kMod:
      return remainder(a, b, flag != 0);
    case Op::kPow:
      return power(a, b);
    case Op::kMin:
      return b < a || b != b ? b : a;
    case Op::kMax:
      return a < b || b != b ? b : a;
    case Op::kAnd:
      return static_cast<C>((a != C{0}) && (b != C{0}));
    case Op::kOr:
      return static_cast<C>((a != C{0}) || (b != C{0}));
    case Op::kXor:
      return static_cast<C>((a != C{0}) != (b != C{0}));
    case Op::kPRelu:
      return a < C{0} ? a * b : a;
    default:
      return a;
  }
}

template <typename C>
bool compares(Op op, C a, C b) {
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
bool is_comparison(Op op) { return op >= Op::kEqual && op <= Op::kGreaterOrEqual; }

struct Parameters {
  double p = 0, q = 0;
};
Parameters parameters_of(const KernelCall& call) {
  const Attributes& a = *call.attributes;
  switch (call.op) {
    case Op::kGelu:
      return {a.text_or("approximate", "none") == "tanh" ? 1.0 : 0.0, 0};
    case Op::kIsInf:
      return {double(a.integer_or("detect_negative", 1)), double(a.integer_or("detect_positive", 1))};
    case Op::kSelu:
      return {a.real_or("alpha", 1.67326319217681884765625), a.real_or("gamma", 1.05070102214813232421875)};
    case Op::kElu:
    case Op::kCelu:
    case Op::kThresholdedRelu:
      return {a.real_or("alpha", 1.0), 0};
    case Op::kLeakyRelu:
      return {a.real_or("alpha", 0.01), 0};
    case Op::kHardSigmoid:
      return {a.real_or("alpha", 0.2), a.real_or("beta", 0.5)};
    case Op::kQuickGelu:
      return {a.real_or("alpha", 1.702), 0};
    default:
      return {};
  }
}

void unary_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const Parameters parameters = parameters_of(call);
  const auto [begin, end] = elements_of(tile, y.size());
  with_compute_type(x.dtype, [&, begin = begin, end = end](auto type) {
    using C = decltype(type);
    C block[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      load(x, i, n, block);
      for (int64_t j = 0; j < n; ++j)
        block[j] = unary<C>(call.op, block[j], static_cast<C>(parameters.p), static_cast<C>(parameters.q));
      store(y, i, n, block);
    }
  });
}

std::vector<OutputType> unary_shapes(const KernelCall& call) {
  std::vector<OutputType> out = like_first(call);
  if (call.op == Op::kIsNaN || call.op == Op::kIsInf || call.op == Op::kNot) out[0].dtype = DType::kBool;
  if (call.op == Op::kCast) out[0].dtype = static_cast<DType>(call.attributes->integer("to"));
  return out;
}

void binary_tile(const KernelCall& call, int64_t tile) {
  const TensorView &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  const auto [begin, end] = elements_of(tile, y.size());
  const Index sa = broadcast_strides(a, y.shape()), sb = broadcast_strides(b, y.shape());
  const int64_t flag = call.attributes->integer_or(call.op == Op::kMod ? "fmod" : "left", 0);
  with_compute_type(a.dtype, [&, begin = begin, end = end](auto type) {
    using C = decltype(type);
    C x[kBlock], z[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      load_broadcast(a, y.shape(), sa, i, n, x);
      load_broadcast(b, y.shape(), sb, i, n, z);
      if (is_comparison(call.op)) {
        for (int64_t j = 0; j < n; ++j) x[j] = static_cast<C>(compares(call.op, x[j], z[j]));
      } else {
        switch (call.op) {  // the common ones without a switch an element
          case Op::kAdd:
            for (int64_t j = 0; j < n; ++j) x[j] = binary<C>(Op::kAdd, x[j], z[j], 0);
            break;
          case Op::kMul:
            for (int64_t j = 0; j < n; ++j) x[j] = binary<C>(Op::kMul, x[j], z[j], 0);
            break;
          default:
            for (int64_t j = 0; j < n; ++j) x[j] = binary<C>(call.op, x[j], z[j], flag);
        }
      }
      store(y, i, n, x);
    }
  });
}

std::vector<OutputType> binary_shapes(const KernelCall& call) {
  const bool to_bool =
      is_comparison(call.op) || call.op == Op::kAnd || call.op == Op::kOr || call.op == Op::kXor;
  return {{to_bool ? DType::kBool : call.inputs[0].dtype,
           broadcast(call.inputs[0].shape(), call.inputs[1].shape())}};
}

std::vector<OutputType> where_shapes(const KernelCall& call) {
  const Dims ab = broadcast(call.inputs[1].shape(), call.inputs[2].shape());
  return {{call.inputs[1].dtype, broadcast(call.inputs[0].shape(), ab)}};
}

void where_tile(const KernelCall& call, int64_t tile) {
  const TensorView& y = call.outputs[0];
  const auto [begin, end] = elements_of(tile, y.size());
  Index strides[3];
  for (std::size_t k = 0; k < 3; ++k) strides[k] = broadcast_strides(call.inputs[k], y.shape());
  with_compute_type(y.dtype, [&, begin = begin, end = end](auto type) {
    using C = decltype(type);
    int64_t condition[kBlock];
    C a[kBlock], b[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      load_broadcast(call.inputs[0], y.shape(), strides[0], i, n, condition);
      load_broadcast(call.inputs[1], y.shape(), strides[1], i, n, a);
      load_broadcast(call.inputs[2], y.shape(), strides[2], i, n, b);
      for (int64_t j = 0; j < n; ++j) a[j] = condition[j] ? a[j] : b[j];
      store(y, i, n, a);
    }
  });
}

void clip_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const auto [begin, end] = elements_of(tile, y.size());
  with_compute_type(x.dtype, [&, begin = begin, end = end](auto type) {
    using C = decltype(type);
    C block[kBlock];
    const bool has_low = has_input(call, 1), has_high = has_input(call, 2);
    const C low = has_low ? load_one<C>(call.inputs[1], 0) : C{0},
            high = has_high ? load_one<C>(call.inputs[2], 0) : C{0};
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      load(x, i, n, block);
      for (int64_t j = 0; j < n; ++j) {
        if (has_low && block[j] < low) block[j] = low;
        if (has_high && block[j] > high) block[j] = high;
      }
      store(y, i, n, block);
    }
  });
}

}  // namespace

void register_pointwise(std::vector<Kernel>& into) {
  for (int i = 0; i < static_cast<int>(Op::kCount); ++i) {
    const Op op = static_cast<Op>(i);
    if (is_unary_pointwise(op)) into.push_back({op, unary_shapes, grid_by_elements, unary_tile});
    if (is_binary_pointwise(op)) into.push_back({op, binary_shapes, grid_by_elements, binary_tile});
  }
  into.push_back({Op::kWhere, where_shapes, grid_by_elements, where_tile});
  into.push_back({Op::kClip, like_first, grid_by_elements, clip_tile});
}

}  // namespace ark::kernels
