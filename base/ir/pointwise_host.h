// The pointwise operators of base/ir/pointwise.h on the host: their table, their parameters in a node, and one
// element at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/ir/attributes.h"
#include "base/ir/pointwise.h"

namespace ark::pointwise {

// A float or double with the functions of the C library.
template <class T>
struct Real {
  using Value = T;
  T v;
  constexpr Real(T value) : v(value) {}
  explicit operator T() const { return v; }

  friend Real operator-(Real a) { return -a.v; }
  friend Real operator+(Real a, Real b) { return a.v + b.v; }
  friend Real operator-(Real a, Real b) { return a.v - b.v; }
  friend Real operator*(Real a, Real b) { return a.v * b.v; }
  friend Real operator/(Real a, Real b) { return a.v / b.v; }
  friend bool operator==(Real a, Real b) { return a.v == b.v; }
  friend auto operator<=>(Real a, Real b) { return a.v <=> b.v; }
  friend bool is_nan(Real a) { return a.v != a.v; }
  friend Real select(bool yes, Real a, Real b) { return yes ? a : b; }
  friend Real max(Real a, Real b) { return a.v > b.v ? a : b; }
  friend Real min(Real a, Real b) { return a.v < b.v ? a : b; }
  friend Real abs(Real a) { return std::fabs(a.v); }
  friend Real copysign(Real a, Real b) { return std::copysign(a.v, b.v); }
  friend Real fma(Real a, Real b, Real c) { return std::fma(a.v, b.v, c.v); }
  friend Real floor(Real a) { return std::floor(a.v); }
  friend Real ceil(Real a) { return std::ceil(a.v); }
  friend Real round(Real a) { return std::nearbyint(a.v); }
  friend Real sqrt(Real a) { return std::sqrt(a.v); }
  friend Real exp(Real a) { return std::exp(a.v); }
  friend Real expm1(Real a) { return std::expm1(a.v); }
  friend Real log(Real a) { return std::log(a.v); }
  friend Real log1p(Real a) { return std::log1p(a.v); }
  friend Real sin(Real a) { return std::sin(a.v); }
  friend Real cos(Real a) { return std::cos(a.v); }
  friend Real tan(Real a) { return std::tan(a.v); }
  friend Real asin(Real a) { return std::asin(a.v); }
  friend Real acos(Real a) { return std::acos(a.v); }
  friend Real atan(Real a) { return std::atan(a.v); }
  friend Real sinh(Real a) { return std::sinh(a.v); }
  friend Real cosh(Real a) { return std::cosh(a.v); }
  friend Real tanh(Real a) { return std::tanh(a.v); }
  friend Real asinh(Real a) { return std::asinh(a.v); }
  friend Real acosh(Real a) { return std::acosh(a.v); }
  friend Real atanh(Real a) { return std::atanh(a.v); }
  friend Real erf(Real a) { return std::erf(a.v); }
  friend Real pow(Real a, Real b) { return std::pow(a.v, b.v); }
  friend Real fmod(Real a, Real b) { return std::fmod(a.v, b.v); }
};

// An integer of 64 bits that wraps around; what ONNX leaves open (division by zero) gives 0.
template <class C>
struct Integer {
  using Value = C;
  using Bits = std::make_unsigned_t<C>;
  C v;
  constexpr Integer(C value) : v(value) {}
  explicit operator C() const { return v; }
  static Integer of_bits(Bits bits) { return static_cast<C>(bits); }
  static constexpr bool is_minus_one(C v) { return std::is_signed_v<C> && v == static_cast<C>(-1); }

  friend Integer operator-(Integer a) { return of_bits(Bits{0} - static_cast<Bits>(a.v)); }
  friend Integer operator+(Integer a, Integer b) {
    return of_bits(static_cast<Bits>(a.v) + static_cast<Bits>(b.v));
  }
  friend Integer operator-(Integer a, Integer b) {
    return of_bits(static_cast<Bits>(a.v) - static_cast<Bits>(b.v));
  }
  friend Integer operator*(Integer a, Integer b) {
    return of_bits(static_cast<Bits>(a.v) * static_cast<Bits>(b.v));
  }
  friend Integer operator/(Integer a, Integer b) {
    return b.v == 0 ? Integer(0) : is_minus_one(b.v) ? -a : Integer(a.v / b.v);
  }
  friend Integer operator~(Integer a) { return static_cast<C>(~a.v); }
  friend Integer operator&(Integer a, Integer b) { return a.v & b.v; }
  friend Integer operator|(Integer a, Integer b) { return a.v | b.v; }
  friend Integer operator^(Integer a, Integer b) { return a.v ^ b.v; }
  friend Integer operator<<(Integer a, Integer b) {
    return b < 0 || b > 63 ? 0 : of_bits(static_cast<Bits>(a.v) << b.v);
  }
  friend Integer operator>>(Integer a, Integer b) { return b < 0 || b > 63 ? a.v < 0 ? -1 : 0 : a.v >> b.v; }
  friend bool operator==(Integer a, Integer b) { return a.v == b.v; }
  friend auto operator<=>(Integer a, Integer b) { return a.v <=> b.v; }
  friend bool is_nan(Integer) { return false; }
  friend Integer select(bool yes, Integer a, Integer b) { return yes ? a : b; }
  friend Integer max(Integer a, Integer b) { return a.v > b.v ? a : b; }
  friend Integer min(Integer a, Integer b) { return a.v < b.v ? a : b; }
  friend Integer abs(Integer a) { return a < 0 ? -a : a; }
  friend Integer copysign(Integer a, Integer) { return a; }  // of zero, which has no sign
  friend Integer floor(Integer a) { return a; }
  friend Integer ceil(Integer a) { return a; }
  friend Integer round(Integer a) { return a; }
  friend Integer fmod(Integer a, Integer b) {
    return b.v == 0 || is_minus_one(b.v) ? Integer(0) : Integer(a.v % b.v);
  }
  friend Integer pow(Integer a, Integer b) {
    if (b < 0) return a == 1 ? a : is_minus_one(a.v) ? (b.v % 2 ? a : Integer(1)) : Integer(0);
    Bits result = 1, base = static_cast<Bits>(a.v);
    for (auto n = static_cast<Bits>(b.v); n; n >>= 1, base *= base)
      if (n & 1) result *= base;
    return of_bits(result);
  }
};

template <class C>
using NumberOf = typename std::conditional_t<std::is_integral_v<C>, std::type_identity<Integer<C>>,
                                             std::type_identity<Real<C>>>::type;

std::span<const Row> rows();
constexpr std::string_view onnx_name(const Row& row) { return row.onnx ? row.onnx : row.name; }
const Row* row_of(Op op);                       // null if the operator is not pointwise
const Row* row_of_onnx(std::string_view name);  // null if no row imports it

// Calls f(O{}) with the operator's struct; false if `op` is not pointwise.
template <class Fn, class... O>
bool visit(Op op, Fn&& f, List<O...>) {
  return ((op == O::row.op ? (f(O{}), true) : false) || ...);
}
template <class Fn>
bool visit(Op op, Fn&& f) {
  return visit(op, f, All{});
}

// Whether fused expressions know it: f32 in, f32 out (Identity there means a load).
constexpr bool is_fusible(const Row& row) {
  return row.result == Result::kSame && row.domain != Domain::kInteger && row.op != Op::kIdentity &&
         row.op != Op::kWhere;
}
// How many tensors of as many elements as the output, and how many numbers, the function takes.
constexpr int operands_of(const Row& row) { return row.arity == 2 ? 2 : 1; }
constexpr int parameters_of(const Row& row) {
  return row.op == Op::kClip ? 2 : (row.p.name != nullptr) + (row.q.name != nullptr);
}

// O on operands a and, if it takes two, b.
template <class O, class F>
auto apply(F a, F b, Value<F> p, Value<F> q) {
  constexpr int operands = operands_of(O::row), parameters = parameters_of(O::row);
  if constexpr (operands == 1 && parameters == 0) return O::of(a);
  if constexpr (operands == 1 && parameters == 1) return O::of(a, p);
  if constexpr (operands == 1 && parameters == 2) return O::of(a, p, q);
  if constexpr (operands == 2 && parameters == 0) return O::of(a, b);
  if constexpr (operands == 2 && parameters == 1) return O::of(a, b, p);
}

// The same on plain numbers; truth is 1. Integers of an operator on reals go by way of double.
template <class O, class C>
C compute(C a, C b, double p, double q) {
  if constexpr (std::is_integral_v<C> && O::row.domain == Domain::kReal) {
    return static_cast<C>(compute<O, double>(static_cast<double>(a), static_cast<double>(b), p, q));
  } else {
    using F = NumberOf<C>;
    return static_cast<C>(apply<O, F>(F(a), F(b), static_cast<Value<F>>(p), static_cast<Value<F>>(q)));
  }
}
// Whether compute<O, C> exists; references are those of gcc 12, whose decltype of a captured parameter is one.
template <class O, class C>
inline constexpr bool kComputes =
    std::remove_cvref_t<O>::row.op != Op::kWhere && !(std::is_floating_point_v<std::remove_cvref_t<C>> &&
                                                      std::remove_cvref_t<O>::row.domain == Domain::kInteger);

// What an operator takes from a node's attributes; of no parameter 0.
double value_of(const Parameter& parameter, const Attributes& attributes);
struct Parameters {
  double p = 0, q = 0;
};
Parameters parameters_of(const Row& row, const Attributes& attributes);

}  // namespace ark::pointwise
