// Sixteen lanes of f32 as a number type of base/ir/pointwise.h, over any vector type (vec_scalar.h): exp, tanh and
// erf are polynomials, other functions the C library's, a lane at a time. All vector types give the same bits.
#pragma once

#include "base/ir/pointwise.h"
#include "engine/cpu/simd/math.h"

namespace ark::simd {
namespace {

template <class T>
struct Lanes {
  using Value = float;
  using V = typename T::V;
  using Mask = typename T::Mask;
  V v;
  Lanes(V value) : v(value) {}
  Lanes(float value) : v(T::set(value)) {}

  // f(x) or f(x, y), a lane at a time.
  template <typename Fn, typename... More>
  static Lanes each(Fn f, Lanes a, More... more) {
    alignas(64) float x[1 + sizeof...(more)][16];
    int n = 0;
    for (const Lanes& lanes : {a, more...}) T::store(x[n++], lanes.v);
    for (int i = 0; i < 16; ++i) {
      if constexpr (sizeof...(more) == 0)
        x[0][i] = f(x[0][i]);
      else
        x[0][i] = f(x[0][i], x[1][i]);
    }
    return T::load(x[0]);
  }

  friend Lanes operator-(Lanes a) { return T::mul(a.v, T::set(-1.f)); }
  friend Lanes operator+(Lanes a, Lanes b) { return T::add(a.v, b.v); }
  friend Lanes operator-(Lanes a, Lanes b) { return T::sub(a.v, b.v); }
  friend Lanes operator*(Lanes a, Lanes b) { return T::mul(a.v, b.v); }
  friend Lanes operator/(Lanes a, Lanes b) { return T::div(a.v, b.v); }
  friend Mask operator<(Lanes a, Lanes b) { return T::less(a.v, b.v); }
  friend Mask operator>(Lanes a, Lanes b) { return T::less(b.v, a.v); }
  friend Mask is_nan(Lanes a) { return T::is_nan(a.v); }
  friend Lanes select(Mask m, Lanes a, Lanes b) { return T::select(m, a.v, b.v); }
  friend Lanes max(Lanes a, Lanes b) { return T::max(a.v, b.v); }
  friend Lanes min(Lanes a, Lanes b) { return T::min(a.v, b.v); }
  friend Lanes abs(Lanes a) { return T::abs(a.v); }
  friend Lanes copysign(Lanes a, Lanes b) { return T::copy_sign(a.v, b.v); }
  friend Lanes fma(Lanes a, Lanes b, Lanes c) { return T::fma(a.v, b.v, c.v); }
  friend Lanes sqrt(Lanes a) { return T::sqrt(a.v); }
  friend Lanes exp(Lanes a) { return simd::exp<T>(a.v); }
  friend Lanes tanh(Lanes a) { return simd::tanh<T>(a.v); }
  friend Lanes erf(Lanes a) { return simd::erf<T>(a.v); }
  // Built-ins: inline functions of std, compiled for one instruction set, could be linked into code for another.
  friend Lanes floor(Lanes a) {
    return each([](float x) { return __builtin_floorf(x); }, a);
  }
  friend Lanes ceil(Lanes a) {
    return each([](float x) { return __builtin_ceilf(x); }, a);
  }
  friend Lanes round(Lanes a) {
    return each([](float x) { return __builtin_nearbyintf(x); }, a);
  }
  friend Lanes expm1(Lanes a) {
    return each([](float x) { return __builtin_expm1f(x); }, a);
  }
  friend Lanes log(Lanes a) {
    return each([](float x) { return __builtin_logf(x); }, a);
  }
  friend Lanes log1p(Lanes a) {
    return each([](float x) { return __builtin_log1pf(x); }, a);
  }
  friend Lanes sin(Lanes a) {
    return each([](float x) { return __builtin_sinf(x); }, a);
  }
  friend Lanes cos(Lanes a) {
    return each([](float x) { return __builtin_cosf(x); }, a);
  }
  friend Lanes tan(Lanes a) {
    return each([](float x) { return __builtin_tanf(x); }, a);
  }
  friend Lanes asin(Lanes a) {
    return each([](float x) { return __builtin_asinf(x); }, a);
  }
  friend Lanes acos(Lanes a) {
    return each([](float x) { return __builtin_acosf(x); }, a);
  }
  friend Lanes atan(Lanes a) {
    return each([](float x) { return __builtin_atanf(x); }, a);
  }
  friend Lanes sinh(Lanes a) {
    return each([](float x) { return __builtin_sinhf(x); }, a);
  }
  friend Lanes cosh(Lanes a) {
    return each([](float x) { return __builtin_coshf(x); }, a);
  }
  friend Lanes asinh(Lanes a) {
    return each([](float x) { return __builtin_asinhf(x); }, a);
  }
  friend Lanes acosh(Lanes a) {
    return each([](float x) { return __builtin_acoshf(x); }, a);
  }
  friend Lanes atanh(Lanes a) {
    return each([](float x) { return __builtin_atanhf(x); }, a);
  }
  friend Lanes pow(Lanes a, Lanes b) {
    return each([](float x, float y) { return __builtin_powf(x, y); }, a, b);
  }
  friend Lanes fmod(Lanes a, Lanes b) {
    return each([](float x, float y) { return __builtin_fmodf(x, y); }, a, b);
  }
};

}  // namespace
}  // namespace ark::simd
