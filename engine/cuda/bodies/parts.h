// Floats as the two 16-bit parts whose products tensor cores add up, in memory: of sixteen elements the parts, then
// their rests, in the bytes that sixteen floats take. So each lie in sectors of L2 of their own (32 bytes): who needs
// no rests does not read them.
#pragma once

#include "engine/cuda/call.h"

namespace ark::cuda {

// Rest of x behind its 16-bit part.
template <class W>
ARK_DEVICE float rest_of(float x) {
  return x - dev::to_f32(dev::from_f32<W>(x));
}

// The part of an element of x, which begins at a multiple of kPartsTogether.
template <class X, class Float>
ARK_DEVICE X* part_at(Float* x, i64 element) {
  return reinterpret_cast<X*>(x + (element & ~(kPartsTogether - 1))) + (element & (kPartsTogether - 1));
}

// X: float, or the type of the parts.
template <class X>
ARK_DEVICE void store_x(float* x, i64 element, float v) {
  if constexpr (sizeof(X) == sizeof(float)) {
    dev::st_global(x + element, v);
  } else {
    X* const part = part_at<X>(x, element);
    const X high = dev::from_f32<X>(v);
    dev::st_global(part, high);
    dev::st_global(part + kPartsTogether, ARK_BUG(rest_left_out) ? high : dev::from_f32<X>(rest_of<X>(v)));
  }
}

// Four elements from a multiple of four on, as store_x() stores each.
template <class X>
ARK_DEVICE void store_four(float* x, i64 element, const dev::f32x4& v) {
  if constexpr (sizeof(X) == sizeof(float)) {
    dev::st_global(reinterpret_cast<dev::f32x4*>(x + element), v);
  } else {
    X* const part = part_at<X>(x, element);
    const dev::u32x2 high = {dev::pack<X>(v.x, v.y), dev::pack<X>(v.z, v.w)};
    const dev::u32x2 rest = {dev::pack<X>(rest_of<X>(v.x), rest_of<X>(v.y)),
                             dev::pack<X>(rest_of<X>(v.z), rest_of<X>(v.w))};
    dev::st_global(reinterpret_cast<dev::u32x2*>(part), high);
    dev::st_global(reinterpret_cast<dev::u32x2*>(part + kPartsTogether),
                   ARK_BUG(rest_left_out) ? high : rest);
  }
}

}  // namespace ark::cuda
