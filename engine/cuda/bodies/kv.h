// Types that pages hold keys and values in: the device's half of engine/program/kv_codec.h.
#pragma once

#include "engine/cuda/bodies/codes.h"

namespace ark::cuda {

// Of eight bits, never NaN: tokens whose numbers are not finite have zeros and a scale that is not.
struct Int8 {
  u8 bits;
};
struct Fp8E4M3 {
  u8 bits;
};

// Kv<E>, E an element type in pages:
//   kFormat          bits, scales
//   kPack         elements that a lane stores at once, and loads of a value: as a Pack
//   Quad          four elements of a key, as they are loaded
//   widen(...)    a Pack or a Quad as numbers
//   narrow(...)   a Pack of numbers, or of what a scale leaves of them, rounded to nearest even
template <class E>
struct Kv {  // f16, bf16
  static constexpr KvFormat kFormat{16};
  static constexpr int kPack = 2;
  using Pack = u32;
  using Quad = dev::u32x2;
  ARK_DEVICE static void widen(Pack pair, float (&to)[2]) {
    const dev::f32x2 two = dev::unpack<E>(pair);
    to[0] = two.x, to[1] = two.y;
  }
  ARK_DEVICE static dev::f32x4 widen(const Quad& quad) {
    const dev::f32x2 a = dev::unpack<E>(quad.x), b = dev::unpack<E>(quad.y);
    return {a.x, a.y, b.x, b.y};
  }
  ARK_DEVICE static Pack narrow(const float (&x)[2]) { return dev::pack<E>(x[0], x[1]); }
};

template <>
struct Kv<float> {
  static constexpr KvFormat kFormat{32};
  static constexpr int kPack = 1;
  using Pack = float;
  using Quad = dev::f32x4;
  ARK_DEVICE static void widen(Pack one, float (&to)[1]) { to[0] = one; }
  ARK_DEVICE static dev::f32x4 widen(const Quad& quad) { return quad; }
  ARK_DEVICE static Pack narrow(const float (&x)[1]) { return x[0]; }
};

// Four codes of eight bits: Own::number(code), Own::code(number).
template <class Own>
struct KvBytes {
  static constexpr int kPack = 4;
  using Pack = u32;
  using Quad = u32;
  ARK_DEVICE static void widen(Pack four, float (&to)[4]) {
    ARK_UNROLL
    for (int i = 0; i < 4; ++i) to[i] = Own::number(four >> 8 * i & 0xff);
  }
  ARK_DEVICE static dev::f32x4 widen(Quad four) {
    float to[4];
    widen(four, to);
    return {to[0], to[1], to[2], to[3]};
  }
  ARK_DEVICE static Pack narrow(const float (&x)[4]) {
    return Own::code(x[0]) | Own::code(x[1]) << 8 | Own::code(x[2]) << 16 | Own::code(x[3]) << 24;
  }
};

template <>
struct Kv<Int8> : KvBytes<Kv<Int8>> {
  static constexpr KvFormat kFormat{8, 127};
  ARK_DEVICE static float number(u32 code) { return shifted(code ^ 0x80) - shifted(0x80); }
  ARK_DEVICE static u32 code(float x) {
    return static_cast<u32>(static_cast<i32>(dev::round_even(x))) & 0xff;
  }
};

template <>
struct Kv<Fp8E4M3> : KvBytes<Kv<Fp8E4M3>> {
  static constexpr KvFormat kFormat{8, 448};
  // As f16, whose exponent has a bias of 15 instead of 7, and 2^8 times that.
  ARK_DEVICE static float number(u32 code) {
    return dev::to_f32(dev::f16{static_cast<dev::u16>((code & 0x80) << 8 | (code & 0x7f) << 7)}) * 256.0f;
  }
  ARK_DEVICE static u32 code(float x) {
    const u32 sign = dev::as_u32(x) >> 24 & 0x80;
    const float size = dev::min(dev::abs(x), 448.0f);
    if (size < 0x1p-6f) return sign | static_cast<u32>(dev::round_even(size * 512));
    const u32 bits = dev::as_u32(size), last = bits >> 20 & 1;
    return sign | (((bits + 0x7ffff + last) >> 20) - (120u << 3));
  }
};

}  // namespace ark::cuda
