// What pointwise operators compute, one element at a time: the one definition behind constant folding and the
// plain kernels. C is the type that is computed in: a floating type or a signed integer of the element's
// width or wider. Integers wrap; what ONNX leaves open (division by zero) gives 0.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/ir/attributes.h"
#include "base/ir/keys.h"
#include "base/ir/ops.h"

namespace ark::pointwise {

inline constexpr double kSqrtHalf = 0.70710678118654752440;

// One unary operator on a value of compute type C; p and q as parameters_of() gives them.
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
inline bool is_comparison(Op op) { return op >= Op::kEqual && op <= Op::kGreaterOrEqual; }

// What a unary operator takes from its attributes, with ONNX's defaults.
struct Parameters {
  double p = 0, q = 0;
};
inline Parameters parameters_of(Op op, const Attributes& a) {
  switch (op) {
    case Op::kGelu:
      return {a.get_or(key::kApproximate, "none") == "tanh" ? 1.0 : 0.0, 0};
    case Op::kIsInf:
      return {double(a.get_or(key::kDetectNegative, 1)), double(a.get_or(key::kDetectPositive, 1))};
    case Op::kSelu:
      return {a.get_or(key::kAlpha, 1.67326319217681884765625),
              a.get_or(key::kGamma, 1.05070102214813232421875)};
    case Op::kElu:
    case Op::kCelu:
    case Op::kThresholdedRelu:
      return {a.get_or(key::kAlpha, 1.0), 0};
    case Op::kLeakyRelu:
      return {a.get_or(key::kAlpha, 0.01), 0};
    case Op::kHardSigmoid:
      return {a.get_or(key::kAlpha, 0.2), a.get_or(key::kBeta, 0.5)};
    case Op::kQuickGelu:
      return {a.get_or(key::kAlpha, 1.702), 0};
    default:
      return {};
  }
}

}  // namespace ark::pointwise
