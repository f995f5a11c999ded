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
#define ARK_EACH_LANE(name, builtin)                    \
  friend Lanes name(Lanes a) {                          \
    return each([](float x) { return builtin(x); }, a); \
  }
  ARK_EACH_LANE(floor, __builtin_floorf)
  ARK_EACH_LANE(ceil, __builtin_ceilf)
  ARK_EACH_LANE(round, __builtin_nearbyintf)
  ARK_EACH_LANE(expm1, __builtin_expm1f)
  ARK_EACH_LANE(log, __builtin_logf)
  ARK_EACH_LANE(log1p, __builtin_log1pf)
  ARK_EACH_LANE(sin, __builtin_sinf)
  ARK_EACH_LANE(cos, __builtin_cosf)
  ARK_EACH_LANE(tan, __builtin_tanf)
  ARK_EACH_LANE(asin, __builtin_asinf)
  ARK_EACH_LANE(acos, __builtin_acosf)
  ARK_EACH_LANE(atan, __builtin_atanf)
  ARK_EACH_LANE(sinh, __builtin_sinhf)
  ARK_EACH_LANE(cosh, __builtin_coshf)
  ARK_EACH_LANE(asinh, __builtin_asinhf)
  ARK_EACH_LANE(acosh, __builtin_acoshf)
  ARK_EACH_LANE(atanh, __builtin_atanhf)
#undef ARK_EACH_LANE
  friend Lanes pow(Lanes a, Lanes b) {
    return each([](float x, float y) { return __builtin_powf(x, y); }, a, b);
  }
  friend Lanes fmod(Lanes a, Lanes b) {
    return each([](float x, float y) { return __builtin_fmodf(x, y); }, a, b);
  }
};

}  // namespace
}  // namespace ark::simd
