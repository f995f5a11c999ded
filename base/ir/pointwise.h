// The pointwise operators: one row and one function each, over any number type. Folding, plain kernels, the
// CPU loop (scalar and vectors) and the CUDA loop compute these functions; importers, names and attributes
// come from the rows. To add one: its name in base/ir/ops.h, a struct here, and its place in All.
//
// Number types: Real<float>, Real<double>, Integer<C> (base/ir/pointwise_host.h), sixteen lanes of f32
// (engine/cpu/simd/lanes.h), a float of the device (engine/cuda/bodies/number.h). Each has the operators,
// `Value` (what a parameter is), and by name exp, log, ..., select(mask, a, b), is_nan(x), fma, copysign, and
//   max(a, b) = a > b ? a : b, min(a, b) = a < b ? a : b: the second operand where one is NaN.
// Special values follow numpy and ONNX Runtime (tests/engine/pointwise_test.cc).
//
// Device code includes this file: nothing of std, C++17.
#pragma once

#include "base/ir/ops.h"

#ifdef __CUDACC__
#define ARK_NUMERIC __device__ __forceinline__
#else
#define ARK_NUMERIC
#endif

namespace ark::pointwise {

// An attribute as ONNX names it, and its default. Functions get a text as 1 where it is `word`, else as 0.
enum class ParameterType : unsigned char { kReal, kInt, kText };
struct Parameter {
  const char* name = nullptr;  // null: none
  double fallback = 0;
  ParameterType type = ParameterType::kReal;
  const char* word = nullptr;
};

enum class Domain : unsigned char {
  kReal,     // integers are computed as doubles
  kNumber,   // integers too; they wrap, division by zero gives 0
  kInteger,  // integers only
};
enum class Result : unsigned char { kSame, kBool, kAsked /* the attribute `to` */ };

struct Row {
  Op op;
  const char* name;
  int arity;
  Parameter p{}, q{};
  Domain domain = Domain::kReal;
  Result result = Result::kSame;
  const char* onnx = nullptr;  // null: as `name`; "": no operator of ONNX, or one with an importer of its own
};

inline constexpr Domain kNumber = Domain::kNumber, kInteger = Domain::kInteger;
inline constexpr Result kSame = Result::kSame, kBool = Result::kBool;
inline constexpr ParameterType kInt = ParameterType::kInt, kText = ParameterType::kText;

template <class F>
using Value = typename F::Value;

// clang-format off

// -- one input: moving, rounding, signs
struct Identity {
  static constexpr Row row{Op::kIdentity, "Identity", 1, {}, {}, kNumber, kSame, ""};
  template <class F> ARK_NUMERIC static F of(F x) { return x; }
};
struct Cast {  // loads and stores convert
  static constexpr Row row{Op::kCast, "Cast", 1, {"to", 0, kInt}, {}, kNumber, Result::kAsked, ""};
  template <class F> ARK_NUMERIC static F of(F x, Value<F>) { return x; }
};
struct Neg {
  static constexpr Row row{Op::kNeg, "Neg", 1, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F x) { return -x; }
};
struct Abs {
  static constexpr Row row{Op::kAbs, "Abs", 1, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F x) { return abs(x); }
};
struct Sign {  // NaN stays NaN
  static constexpr Row row{Op::kSign, "Sign", 1, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F x) { return select(x > 0, F(1), select(x < 0, F(-1), x)); }
};
struct Floor {
  static constexpr Row row{Op::kFloor, "Floor", 1, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F x) { return floor(x); }
};
struct Ceil {
  static constexpr Row row{Op::kCeil, "Ceil", 1, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F x) { return ceil(x); }
};
struct Round {  // half to even
  static constexpr Row row{Op::kRound, "Round", 1, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F x) { return round(x); }
};

// -- one input: elementary functions
struct Reciprocal {
  static constexpr Row row{Op::kReciprocal, "Reciprocal", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return 1 / x; }
};
struct Sqrt {
  static constexpr Row row{Op::kSqrt, "Sqrt", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return sqrt(x); }
};
struct Rsqrt {
  static constexpr Row row{Op::kRsqrt, "Rsqrt", 1, {}, {}, Domain::kReal, kSame, ""};
  template <class F> ARK_NUMERIC static F of(F x) { return 1 / sqrt(x); }
};
struct Exp {
  static constexpr Row row{Op::kExp, "Exp", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return exp(x); }
};
struct Log {
  static constexpr Row row{Op::kLog, "Log", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return log(x); }
};
struct Sin {
  static constexpr Row row{Op::kSin, "Sin", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return sin(x); }
};
struct Cos {
  static constexpr Row row{Op::kCos, "Cos", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return cos(x); }
};
struct Tan {
  static constexpr Row row{Op::kTan, "Tan", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return tan(x); }
};
struct Asin {
  static constexpr Row row{Op::kAsin, "Asin", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return asin(x); }
};
struct Acos {
  static constexpr Row row{Op::kAcos, "Acos", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return acos(x); }
};
struct Atan {
  static constexpr Row row{Op::kAtan, "Atan", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return atan(x); }
};
struct Sinh {
  static constexpr Row row{Op::kSinh, "Sinh", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return sinh(x); }
};
struct Cosh {
  static constexpr Row row{Op::kCosh, "Cosh", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return cosh(x); }
};
struct Tanh {
  static constexpr Row row{Op::kTanh, "Tanh", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return tanh(x); }
};
struct Asinh {
  static constexpr Row row{Op::kAsinh, "Asinh", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return asinh(x); }
};
struct Acosh {
  static constexpr Row row{Op::kAcosh, "Acosh", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return acosh(x); }
};
struct Atanh {
  static constexpr Row row{Op::kAtanh, "Atanh", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return atanh(x); }
};
struct Erf {
  static constexpr Row row{Op::kErf, "Erf", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return erf(x); }
};

// -- one input: activations
struct Sigmoid {
  static constexpr Row row{Op::kSigmoid, "Sigmoid", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return 1 / (1 + exp(-x)); }
};
struct Relu {
  static constexpr Row row{Op::kRelu, "Relu", 1, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F x) { return max(F(0), x); }
};
struct Silu {
  static constexpr Row row{Op::kSilu, "Silu", 1, {}, {}, Domain::kReal, kSame, ""};
  template <class F> ARK_NUMERIC static F of(F x) { return x * Sigmoid::of(x); }
};
struct QuickGelu {
  static constexpr Row row{Op::kQuickGelu, "QuickGelu", 1, {"alpha", 1.702f}, {}, Domain::kReal, kSame, ""};
  template <class F> ARK_NUMERIC static F of(F x, Value<F> alpha) { return x * Sigmoid::of(alpha * x); }
};
struct Gelu {  // x / 2 (1 + erf(x / sqrt 2)), or x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
  static constexpr Row row{Op::kGelu, "Gelu", 1, {"approximate", 0, kText, "tanh"}};
  template <class F> ARK_NUMERIC static F of(F x, Value<F> by_tanh) {
    if (by_tanh == 0) return F(0.5) * x * (1 + erf(x * F(0.70710678118654752440)));
    return F(0.5) * x * (1 + tanh(F(0.79788456080286535588) * fma(F(0.044715), x * x * x, x)));
  }
};
struct Softplus {
  static constexpr Row row{Op::kSoftplus, "Softplus", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return max(F(0), x) + log1p(exp(-abs(x))); }
};
struct Softsign {
  static constexpr Row row{Op::kSoftsign, "Softsign", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return x / (1 + abs(x)); }
};
struct Mish {
  static constexpr Row row{Op::kMish, "Mish", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return x * tanh(Softplus::of(x)); }
};
struct Elu {
  static constexpr Row row{Op::kElu, "Elu", 1, {"alpha", 1}};
  template <class F> ARK_NUMERIC static F of(F x, Value<F> alpha) {
    return select(x > 0, x, alpha * expm1(x));
  }
};
struct Selu {
  static constexpr Row row{Op::kSelu, "Selu", 1, {"alpha", 1.67326319217681884765625},
                           {"gamma", 1.05070102214813232421875}};
  template <class F> ARK_NUMERIC static F of(F x, Value<F> alpha, Value<F> gamma) {
    return gamma * Elu::of(x, alpha);
  }
};
struct Celu {
  static constexpr Row row{Op::kCelu, "Celu", 1, {"alpha", 1}};
  template <class F> ARK_NUMERIC static F of(F x, Value<F> alpha) {
    return max(F(0), x) + min(F(0), alpha * expm1(x / alpha));
  }
};
struct LeakyRelu {
  static constexpr Row row{Op::kLeakyRelu, "LeakyRelu", 1, {"alpha", 0.01f}};
  template <class F> ARK_NUMERIC static F of(F x, Value<F> alpha) { return select(x < 0, alpha * x, x); }
};
struct ThresholdedRelu {  // NaN gives 0
  static constexpr Row row{Op::kThresholdedRelu, "ThresholdedRelu", 1, {"alpha", 1}};
  template <class F> ARK_NUMERIC static F of(F x, Value<F> alpha) { return select(x > alpha, x, F(0)); }
};
struct HardSigmoid {
  static constexpr Row row{Op::kHardSigmoid, "HardSigmoid", 1, {"alpha", 0.2f}, {"beta", 0.5}};
  template <class F> ARK_NUMERIC static F of(F x, Value<F> alpha, Value<F> beta) {
    return max(F(0), min(F(1), alpha * x + beta));
  }
};
struct HardSwish {
  static constexpr Row row{Op::kHardSwish, "HardSwish", 1};
  template <class F> ARK_NUMERIC static F of(F x) { return x * max(F(0), min(F(1), x / 6 + F(0.5))); }
};
struct ScaledTanh {
  static constexpr Row row{Op::kScaledTanh, "ScaledTanh", 1, {"alpha", 1}, {"beta", 1}};
  template <class F> ARK_NUMERIC static F of(F x, Value<F> alpha, Value<F> beta) {
    return alpha * tanh(beta * x);
  }
};

// -- one input: tests and bits
struct Not {
  static constexpr Row row{Op::kNot, "Not", 1, {}, {}, kNumber, kBool};
  template <class F> ARK_NUMERIC static auto of(F x) { return x == 0; }
};
struct BitNot {
  static constexpr Row row{Op::kBitNot, "BitNot", 1, {}, {}, kInteger, kSame, "BitwiseNot"};
  template <class F> ARK_NUMERIC static F of(F x) { return ~x; }
};
struct IsNaN {
  static constexpr Row row{Op::kIsNaN, "IsNaN", 1, {}, {}, Domain::kReal, kBool};
  template <class F> ARK_NUMERIC static auto of(F x) { return is_nan(x); }
};
struct IsInf {
  static constexpr Row row{Op::kIsInf, "IsInf", 1, {"detect_negative", 1, kInt}, {"detect_positive", 1, kInt},
                           Domain::kReal, kBool};
  template <class F> ARK_NUMERIC static auto of(F x, Value<F> negative, Value<F> positive) {
    return !is_nan(x) && is_nan(x - x) && (x > 0 ? positive : negative) != 0;
  }
};

// -- two inputs
struct Add {
  static constexpr Row row{Op::kAdd, "Add", 2, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F a, F b) { return a + b; }
};
struct Sub {
  static constexpr Row row{Op::kSub, "Sub", 2, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F a, F b) { return a - b; }
};
struct Mul {
  static constexpr Row row{Op::kMul, "Mul", 2, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F a, F b) { return a * b; }
};
struct Div {
  static constexpr Row row{Op::kDiv, "Div", 2, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F a, F b) { return a / b; }
};
struct Mod {  // fmod = 0: the sign of b, as numpy's (exact: no rounding but that of the last sum)
  static constexpr Row row{Op::kMod, "Mod", 2, {"fmod", 0, kInt}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F a, F b, Value<F> truncated) {
    const F r = fmod(a, b);
    if (truncated != 0) return r;
    const F m = select(r < 0, select(b < 0, r, r + b), select(b < 0, select(r > 0, r + b, r), r));
    return select(abs(m) > 0, m, copysign(m, b));
  }
};
struct Pow {
  static constexpr Row row{Op::kPow, "Pow", 2, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F a, F b) { return pow(a, b); }
};
struct Min {  // NaN if either is
  static constexpr Row row{Op::kMin, "Min", 2, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F a, F b) { return select(is_nan(a), a, min(a, b)); }
};
struct Max {
  static constexpr Row row{Op::kMax, "Max", 2, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F a, F b) { return select(is_nan(a), a, max(a, b)); }
};
struct PRelu {  // (x, slope)
  static constexpr Row row{Op::kPRelu, "PRelu", 2, {}, {}, kNumber};
  template <class F> ARK_NUMERIC static F of(F x, F slope) { return select(x < 0, x * slope, x); }
};
struct And {
  static constexpr Row row{Op::kAnd, "And", 2, {}, {}, kNumber, kBool};
  template <class F> ARK_NUMERIC static auto of(F a, F b) { return a != 0 && b != 0; }
};
struct Or {
  static constexpr Row row{Op::kOr, "Or", 2, {}, {}, kNumber, kBool};
  template <class F> ARK_NUMERIC static auto of(F a, F b) { return a != 0 || b != 0; }
};
struct Xor {
  static constexpr Row row{Op::kXor, "Xor", 2, {}, {}, kNumber, kBool};
  template <class F> ARK_NUMERIC static auto of(F a, F b) { return (a != 0) != (b != 0); }
};
struct Equal {
  static constexpr Row row{Op::kEqual, "Equal", 2, {}, {}, kNumber, kBool};
  template <class F> ARK_NUMERIC static auto of(F a, F b) { return a == b; }
};
struct Less {
  static constexpr Row row{Op::kLess, "Less", 2, {}, {}, kNumber, kBool};
  template <class F> ARK_NUMERIC static auto of(F a, F b) { return a < b; }
};
struct LessOrEqual {
  static constexpr Row row{Op::kLessOrEqual, "LessOrEqual", 2, {}, {}, kNumber, kBool};
  template <class F> ARK_NUMERIC static auto of(F a, F b) { return a <= b; }
};
struct Greater {
  static constexpr Row row{Op::kGreater, "Greater", 2, {}, {}, kNumber, kBool};
  template <class F> ARK_NUMERIC static auto of(F a, F b) { return a > b; }
};
struct GreaterOrEqual {
  static constexpr Row row{Op::kGreaterOrEqual, "GreaterOrEqual", 2, {}, {}, kNumber, kBool};
  template <class F> ARK_NUMERIC static auto of(F a, F b) { return a >= b; }
};
struct BitAnd {
  static constexpr Row row{Op::kBitAnd, "BitAnd", 2, {}, {}, kInteger, kSame, "BitwiseAnd"};
  template <class F> ARK_NUMERIC static F of(F a, F b) { return a & b; }
};
struct BitOr {
  static constexpr Row row{Op::kBitOr, "BitOr", 2, {}, {}, kInteger, kSame, "BitwiseOr"};
  template <class F> ARK_NUMERIC static F of(F a, F b) { return a | b; }
};
struct BitXor {
  static constexpr Row row{Op::kBitXor, "BitXor", 2, {}, {}, kInteger, kSame, "BitwiseXor"};
  template <class F> ARK_NUMERIC static F of(F a, F b) { return a ^ b; }
};
struct BitShift {  // by 0 .. 63 bits, else everything goes; to the right it keeps the sign
  static constexpr Row row{Op::kBitShift, "BitShift", 2, {"left", 0, kInt}, {}, kInteger, kSame, ""};
  template <class F> ARK_NUMERIC static F of(F a, F b, Value<F> left) { return left != 0 ? a << b : a >> b; }
};

// -- three inputs
struct Where {
  static constexpr Row row{Op::kWhere, "Where", 3, {}, {}, kNumber, kSame, ""};
  template <class F> ARK_NUMERIC static F of(bool condition, F a, F b) { return condition ? a : b; }
};
struct Clip {  // the bounds are one number each; NaN stays NaN
  static constexpr Row row{Op::kClip, "Clip", 3, {}, {}, kNumber, kSame, ""};
  template <class F> ARK_NUMERIC static F of(F x, Value<F> low, Value<F> high) {
    return min(F(high), max(F(low), x));
  }
};

template <class...>
struct List {};
using All = List<
    Identity, Cast, Neg, Abs, Sign, Floor, Ceil, Round, Reciprocal, Sqrt, Rsqrt, Exp, Log, Sin, Cos, Tan,
    Asin, Acos, Atan, Sinh, Cosh, Tanh, Asinh, Acosh, Atanh, Erf, Sigmoid, Relu, Silu, QuickGelu, Gelu,
    Softplus, Softsign, Mish, Elu, Selu, Celu, LeakyRelu, ThresholdedRelu, HardSigmoid, HardSwish,
    ScaledTanh, Not, BitNot, IsNaN, IsInf, Add, Sub, Mul, Div, Mod, Pow, Min, Max, PRelu, And, Or, Xor,
    Equal, Less, LessOrEqual, Greater, GreaterOrEqual, BitAnd, BitOr, BitXor, BitShift, Where, Clip>;
// clang-format on

}  // namespace ark::pointwise
