// Floats as the two 16-bit parts whose products tensor cores add up, in memory: of sixteen elements the parts, then
// their rests, in the bytes that sixteen floats take. So each lie in sectors of L2 of their own (32 bytes): who needs
// no rests does not read them.
#pragma once

#include "engine/cuda/lamport.h"

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

// A warp's elements, one a lane, from a multiple of two on: those before `end`, a multiple of two if X are parts. X:
// float, or the type of the parts. Whole words, which are what somebody waits for if `told` (engine/cuda/lamport.h): of
// parts an even lane has those of two elements, an odd one their rests.
template <class X>
ARK_DEVICE void store_x(float* x, i32 element, i32 end, float v, bool told) {
  if constexpr (sizeof(X) == sizeof(float)) {
    if (element < end) dev::st_words(x + element, word_of(v), told);
  } else {
    const u32 own = dev::pack<X>(v, ARK_BUG(rest_left_out) ? v : rest_of<X>(v)),
              other = dev::shfl_xor(own, 1);
    const bool has_rests = element % 2 != 0;
    const u32 two = has_rests ? other >> 16 | (own & 0xffff0000) : (own & 0xffff) | other << 16;
    X* const part = part_at<X>(x, element & ~1) + (has_rests ? kPartsTogether : 0);
    if (element < end) dev::st_words(reinterpret_cast<u32*>(part), two, told);
  }
}

// Four elements from a multiple of four on, as store_x() stores each.
template <class X>
ARK_DEVICE void store_four(float* x, i64 element, const dev::f32x4& v, bool told) {
  if constexpr (sizeof(X) == sizeof(float)) {
    dev::st_words(reinterpret_cast<dev::f32x4*>(x + element), words_of(v), told);
  } else {
    X* const part = part_at<X>(x, element);
    const dev::u32x2 high = {dev::pack<X>(v.x, v.y), dev::pack<X>(v.z, v.w)};
    const dev::u32x2 rest = {dev::pack<X>(rest_of<X>(v.x), rest_of<X>(v.y)),
                             dev::pack<X>(rest_of<X>(v.z), rest_of<X>(v.w))};
    dev::st_words(reinterpret_cast<dev::u32x2*>(part), high, told);
    dev::st_words(reinterpret_cast<dev::u32x2*>(part + kPartsTogether), ARK_BUG(rest_left_out) ? high : rest,
                  told);
  }
}

}  // namespace ark::cuda
