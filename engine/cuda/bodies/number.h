// A float of the device as a number type of base/ir/pointwise.h.
#pragma once

#include "base/ir/pointwise.h"
#include "dma/device.h"

namespace ark::cuda {

namespace dev = ark::dev;

struct Number {
  using Value = float;
  float v;
  ARK_DEVICE Number(float value) : v(value) {}

  friend ARK_DEVICE Number operator-(Number a) { return -a.v; }
  friend ARK_DEVICE Number operator+(Number a, Number b) { return a.v + b.v; }
  friend ARK_DEVICE Number operator-(Number a, Number b) { return a.v - b.v; }
  friend ARK_DEVICE Number operator*(Number a, Number b) { return a.v * b.v; }
  friend ARK_DEVICE Number operator/(Number a, Number b) { return a.v / b.v; }
  friend ARK_DEVICE bool operator<(Number a, Number b) { return a.v < b.v; }
  friend ARK_DEVICE bool operator>(Number a, Number b) { return a.v > b.v; }
  friend ARK_DEVICE bool is_nan(Number a) { return a.v != a.v; }
  friend ARK_DEVICE Number select(bool yes, Number a, Number b) { return yes ? a : b; }
  friend ARK_DEVICE Number max(Number a, Number b) { return a.v > b.v ? a : b; }
  friend ARK_DEVICE Number min(Number a, Number b) { return a.v < b.v ? a : b; }
  friend ARK_DEVICE Number abs(Number a) { return dev::abs(a.v); }
  friend ARK_DEVICE Number copysign(Number a, Number b) {
    return dev::as_f32((dev::as_u32(a.v) & 0x7fffffffu) | (dev::as_u32(b.v) & 0x80000000u));
  }
  friend ARK_DEVICE Number fma(Number a, Number b, Number c) { return dev::fma(a.v, b.v, c.v); }
  friend ARK_DEVICE Number floor(Number a) { return dev::floor(a.v); }
  friend ARK_DEVICE Number ceil(Number a) { return dev::ceil(a.v); }
  friend ARK_DEVICE Number round(Number a) { return dev::round_even(a.v); }
  friend ARK_DEVICE Number sqrt(Number a) { return dev::sqrt(a.v); }
  friend ARK_DEVICE Number exp(Number a) { return dev::exp(a.v); }
  friend ARK_DEVICE Number expm1(Number a) { return dev::expm1(a.v); }
  friend ARK_DEVICE Number log(Number a) { return dev::log(a.v); }
  friend ARK_DEVICE Number log1p(Number a) { return dev::log1p(a.v); }
  friend ARK_DEVICE Number sin(Number a) { return dev::sin(a.v); }
  friend ARK_DEVICE Number cos(Number a) { return dev::cos(a.v); }
  friend ARK_DEVICE Number tan(Number a) { return dev::tan(a.v); }
  friend ARK_DEVICE Number asin(Number a) { return dev::asin(a.v); }
  friend ARK_DEVICE Number acos(Number a) { return dev::acos(a.v); }
  friend ARK_DEVICE Number atan(Number a) { return dev::atan(a.v); }
  friend ARK_DEVICE Number sinh(Number a) { return dev::sinh(a.v); }
  friend ARK_DEVICE Number cosh(Number a) { return dev::cosh(a.v); }
  friend ARK_DEVICE Number tanh(Number a) { return dev::tanh(a.v); }
  friend ARK_DEVICE Number asinh(Number a) { return dev::asinh(a.v); }
  friend ARK_DEVICE Number acosh(Number a) { return dev::acosh(a.v); }
  friend ARK_DEVICE Number atanh(Number a) { return dev::atanh(a.v); }
  friend ARK_DEVICE Number erf(Number a) { return dev::erf(a.v); }
  friend ARK_DEVICE Number pow(Number a, Number b) { return dev::pow(a.v, b.v); }
  friend ARK_DEVICE Number fmod(Number a, Number b) { return dev::fmod(a.v, b.v); }
};

}  // namespace ark::cuda
