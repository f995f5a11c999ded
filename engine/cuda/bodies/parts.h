// Floats as the two 16-bit parts whose products tensor cores add up, in memory: of eight elements the parts, then their
// rests, in the bytes that eight floats take.
#pragma once

#include "engine/cuda/call.h"

namespace ark::cuda {

// Rest of x behind its 16-bit part.
template <class W>
ARK_DEVICE float rest_of(float x) {
  return x - dev::to_f32(dev::from_f32<W>(x));
}

// Element `element` of x, which begins at a multiple of eight. X: float, or the type of the parts.
template <class X>
ARK_DEVICE void store_x(float* x, i64 element, float v) {
  if constexpr (sizeof(X) == sizeof(float)) {
    dev::st_global(x + element, v);
  } else {
    X* part = reinterpret_cast<X*>(x + (element & ~i64{7})) + (element & 7);
    const X high = dev::from_f32<X>(v);
    dev::st_global(part, high);
    dev::st_global(part + 8, ARK_BUG(rest_left_out) ? high : dev::from_f32<X>(rest_of<X>(v)));
  }
}

}  // namespace ark::cuda
