// Weights as 4- or 8-bit codes beside the scales and zeros or offsets of their blocks, as engine/program/weight_codec.h
// lays them out: a number is (code - zero) * scale, or fma(code, scale, offset) (BlockTerms).
#pragma once

#include "engine/cuda/bodies/math.h"

namespace ark::cuda {

// Element types of weights; two rows of a column take kPairBytes.
template <int kBitsOfCode, BlockTerms kBlockTerms = BlockTerms::kZeros>
struct Codes {
  static constexpr BlockTerms kTerms = kBlockTerms;
  static constexpr int kBits = kBitsOfCode;
  static constexpr int kMiddle = middle_of(kBits);
  static constexpr int kPairBytes = kBits / 4;
  static constexpr u32 kMask = (1u << kBits) - 1;
};
using U4 = Codes<4>;
using U8 = Codes<8>;

// 2^23 + n for n < 2^23, without a conversion: differences of two such numbers are exact.
ARK_DEVICE u32 shifted_bits(u32 n) { return 0x4b000000u | n; }
ARK_DEVICE float shifted(u32 n) { return dev::as_f32(shifted_bits(n)); }

// Of byte number `i`.
ARK_DEVICE float shifted_byte(u32 word, int i) {
  return dev::as_f32(dev::permute_bytes(word, shifted_bits(0), 0x7440u + static_cast<u32>(i)));
}

// One block of rows of a panel, in shared or global memory.
template <class Q>
struct CodeBlock {
  const u8* start;
  int panel;  // columns
  bool is_turned = false;

  static constexpr BlockTerms kTerms = Q::kTerms;

  // Without a branch, so that loads of several numbers are under way at once.
  ARK_DEVICE int either(int turned, int other) const {
    const int mask = -static_cast<int>(is_turned);
    return (turned & mask) | (other & ~mask);
  }
  ARK_DEVICE int place(int column) const { return either(turned_term(column, panel), column); }
  ARK_DEVICE float scale(int column) const { return term(start, place(column)); }
  ARK_DEVICE float zero(int column) const {
    return shifted(kTerms == BlockTerms::kZeros ? others()[place(column)] : Q::kMiddle);
  }
  ARK_DEVICE float offset(int column) const { return term(others(), place(column)); }
  ARK_DEVICE const u8* codes(int pair, int column) const {
    return start + terms_bytes(kTerms) * panel + (pair * panel + column) * Q::kPairBytes;
  }
  // Row k's number.
  ARK_DEVICE float number(int k, int column) const {
    const int bit = either(turned_code_bit(k, column, panel, Q::kBits),
                           (k / 2 * panel + column) * 2 * Q::kBits + k % 2 * Q::kBits);
    const float code = shifted(codes(0, 0)[bit / 8] >> bit % 8 & Q::kMask);
    if (has_zeros(kTerms)) return (code - zero(column)) * scale(column);
    return dev::fma(code - shifted(0), scale(column), offset(column));
  }
  // Codes minus zero of rows 2 pair and 2 pair + 1.
  ARK_DEVICE dev::f32x2 differences(int pair, int column, float zero) const {
    const u8* p = codes(pair, column);
    u32 both = *p;
    if constexpr (Q::kPairBytes == 2) both = *reinterpret_cast<const dev::u16*>(p);
    return {shifted(both & Q::kMask) - zero, shifted(both / (Q::kMask + 1)) - zero};
  }
  // The numbers of those rows in eight columns, from a multiple of eight.
  ARK_DEVICE void numbers(int pair, int column, float (&even)[8], float (&odd)[8]) const {
    if constexpr (!has_zeros(kTerms)) {
      ARK_UNROLL
      for (int c = 0; c < 8; ++c) {
        const dev::f32x2 two = differences(pair, column + c, shifted(0));
        even[c] = dev::fma(two.x, scale(column + c), offset(column + c));
        odd[c] = dev::fma(two.y, scale(column + c), offset(column + c));
      }
      return;
    }
    dev::u32x2 zeros = {};
    if constexpr (kTerms == BlockTerms::kZeros)
      zeros = *reinterpret_cast<const dev::u32x2*>(others() + column);
    const u32* words = reinterpret_cast<const u32*>(codes(pair, column));
    ARK_UNROLL
    for (int half = 0; half < 2; ++half) {
      float scales[4];
      load_scales(column + half * 4, scales);
      ARK_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int c = half * 4 + i, bit = c * Q::kPairBytes * 8;
        const u32 both = words[bit / 32] >> bit % 32;
        const u32 stored = (half == 0 ? zeros.x : zeros.y) >> 8 * i & 0xff;
        const float zero = shifted(kTerms == BlockTerms::kZeros ? stored : Q::kMiddle);
        even[c] = (shifted(both & Q::kMask) - zero) * scales[i];
        odd[c] = (shifted(both / (Q::kMask + 1) & Q::kMask) - zero) * scales[i];
      }
    }
  }

  // ---- blocks that are turned: what a lane takes of them as tensor cores' fragments

  // Four registers of rows 16 `step` to 16 `step` + 15 and sixteen columns: codes minus zeros, or codes, in bf16.
  ARK_DEVICE void load_registers(int step, int group, int lane, u32 (&to)[4]) const {
    const int words = (step * (panel / 16) + group) * 32 + lane;
    const u8* from = codes(0, 0) + words * Q::kBits;
    u32 zeros = has_zeros(kTerms) ? Q::kMiddle * 0x101u : 0;  // of the lane's two columns
    if constexpr (kTerms == BlockTerms::kZeros)
      zeros = *reinterpret_cast<const dev::u16*>(others() + turned_place(group, lane));
    if constexpr (Q::kBits == 4) {
      const u32 all = *reinterpret_cast<const u32*>(from);
      ARK_UNROLL
      for (int r = 0; r < 4; ++r) {                              // 0x4300 | n is 128 + n in bf16
        const u32 zero = 0xc300u | (zeros >> r % 2 * 8 & 0xff);  // minus (128 + it)
        to[r] = dev::add_bf16x2(dev::masked_or(all >> 4 * r, 0x000f000fu, 0x43004300u), zero | zero << 16);
      }
    } else {
      const dev::u32x2 all = *reinterpret_cast<const dev::u32x2*>(from);
      ARK_UNROLL
      for (int r = 0; r < 4; ++r) {
        const u32 word = r < 2 ? all.x : all.y;
        const float zero = shifted_byte(zeros, r % 2);
        to[r] =
            dev::pack_bf16(shifted_byte(word, r % 2 * 2) - zero, shifted_byte(word, r % 2 * 2 + 1) - zero);
      }
    }
  }
  // Of the lane's two columns in a group of sixteen.
  ARK_DEVICE dev::f32x2 load_scales(int group, int lane) const {
    return two_terms(start, turned_place(group, lane));
  }
  ARK_DEVICE dev::f32x2 load_offsets(int group, int lane) const {
    if constexpr (has_zeros(kTerms)) return {};
    return two_terms(others(), turned_place(group, lane));
  }

 private:
  ARK_DEVICE int turned_place(int group, int lane) const { return lane / 4 * (panel / 8) + group * 2; }
  ARK_DEVICE static dev::f32x2 two_terms(const u8* terms, int place) {
    if constexpr (has_halves(kTerms))
      return dev::unpack<dev::f16>(*reinterpret_cast<const u32*>(terms + place * 2));
    else
      return *reinterpret_cast<const dev::f32x2*>(terms + place * 4);
  }
  ARK_DEVICE void load_scales(int column, float (&to)[4]) const {  // from a multiple of four
    if constexpr (has_halves(kTerms)) {
      const dev::u32x2 pairs = *reinterpret_cast<const dev::u32x2*>(start + column * 2);
      const dev::f32x2 first = dev::unpack<dev::f16>(pairs.x), last = dev::unpack<dev::f16>(pairs.y);
      to[0] = first.x, to[1] = first.y, to[2] = last.x, to[3] = last.y;
    } else {
      const dev::f32x4 s = *reinterpret_cast<const dev::f32x4*>(start + column * 4);
      to[0] = s.x, to[1] = s.y, to[2] = s.z, to[3] = s.w;
    }
  }
  ARK_DEVICE const u8* others() const { return start + scale_bytes(kTerms) * panel; }
  ARK_DEVICE static float term(const u8* terms, int column) {
    if constexpr (has_halves(kTerms))
      return dev::to_f32(reinterpret_cast<const dev::f16*>(terms)[column]);
    else
      return reinterpret_cast<const float*>(terms)[column];
  }
};

}  // namespace ark::cuda
