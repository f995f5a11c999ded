// What a stored type of weights is: its facts, how it lies in panels (Layout::kPanels), and how sixteen columns become
// f32. Packing, lowering, the validator, look-ups of rows, the vector kernels and the CUDA sources ask here; nothing
// else tells stored types apart. A new type: a struct below and its place in the list (the type itself: base/dtype.h).
//
// A panel is a run of units of rows. With WeightUse::block 0 a unit is one row of `panel` numbers. Else it is a block
// of `block` rows of codes with what they stand for:
//   scales [panel], zeros or offsets [panel] or neither (BlockTerms), codes of block / 2 pairs of rows;
// all blocks are there whole, rows behind K being zeros. A pair of rows k, k + 1 (k even) is [panel] x two codes, row
// k's in the low bits. So one load brings two rows, and two k's of one column, which tensor cores want together, are
// neighbours. The element is (code - zero) * scale: one exact f32 subtraction, one f32 product; or one f32
// multiply-add. Nothing that follows differs from a weight stored as f32: the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "base/ir/quantized.h"
#include "base/number_tables.h"
#include "engine/program/program.h"

namespace ark {

inline constexpr int32_t kMinPanelBlock = 8, kMaxPanelBlock = 128;

constexpr int64_t unit_rows(int64_t block) { return block == 0 ? 1 : block; }
constexpr int64_t units_of(int64_t k, int64_t block) { return (k + unit_rows(block) - 1) / unit_rows(block); }
// What holds the terms of `quantized` exactly.
BlockTerms terms_of(const Quantized& quantized);

struct WeightCodec {
  DType type;
  int bits;
  bool has_numbers, has_codes;  // the forms that panels of it can have
  // The element type in CUDA sources (engine/cuda/bodies), null without device code; products on tensor cores.
  const char* device = nullptr;
  bool has_mma = false;
  bool has_offsets = false;  // codes beside any BlockTerms

  // Bytes of two codes of one column.
  constexpr int64_t pair_bytes() const { return bits / 4; }
  constexpr int64_t unit_bytes(int64_t panel, int64_t block, BlockTerms terms) const {
    return panel * (block == 0 ? bits / 8 : terms_bytes(terms) + block / 2 * pair_bytes());
  }
  constexpr int64_t unit_bytes(const WeightUse& use) const {
    return unit_bytes(use.panel, use.block, use.terms);
  }
  // A block with its scales fits one stage of a device's ring of weights (engine/cuda/image.h).
  constexpr int32_t max_block() const { return kMaxPanelBlock * 4 / bits; }
  constexpr bool allows(int64_t block, BlockTerms terms) const {
    if (block == 0) return has_numbers && terms == BlockTerms::kZeros;
    return has_codes && (terms == BlockTerms::kZeros || has_offsets) && block % 2 == 0 &&
           block >= kMinPanelBlock && block <= max_block();
  }
  bool holds(const Quantized& quantized) const;
};

// Null if panels cannot hold the type.
const WeightCodec* codec_of(DType stored);
// The one of the fewest bits that holds the codes.
const WeightCodec& codec_of(const Quantized& quantized);

// Column n of panels of k_size rows at `data`, as f32.
void decode_column(const WeightUse& use, const std::byte* data, int64_t n, int64_t k_size, float* to);

// ---- one struct a type. T: a vector type of sixteen lanes (engine/cpu/simd/vec_scalar.h). load(): sixteen numbers;
// load_codes(): sixteen columns of a pair of rows of codes, as numbers (a Pair<T>).

struct F32Weights {
  static constexpr WeightCodec kCodec{DType::kF32, 32, true, false, "float"};
  using Element = float;
  template <class T>
  static auto load(const float* p) {
    return T::load(p);
  }
};

struct F16Weights {
  static constexpr WeightCodec kCodec{DType::kF16, 16, true, false, "dev::f16", true};
  using Element = uint16_t;
  template <class T>
  static auto load(const uint16_t* p) {
    return T::load_f16(p);
  }
};

struct BF16Weights {
  static constexpr WeightCodec kCodec{DType::kBF16, 16, true, false, "dev::bf16", true};
  using Element = uint16_t;
  template <class T>
  static auto load(const uint16_t* p) {
    return T::load_bf16(p);
  }
};

struct U4Weights {
  static constexpr WeightCodec kCodec{DType::kU4, 4, false, true, "U4", true, true};
  template <class T>
  static auto load_codes(const uint8_t* p) {
    return T::load_codes4(p);
  }
};

struct U8Weights {
  static constexpr WeightCodec kCodec{DType::kU8, 8, false, true, "U8", true, true};
  template <class T>
  static auto load_codes(const uint8_t* p) {
    return T::load_codes8(p);
  }
};

// Codes of a table of 16 numbers.
template <DType kType, const float (&kNumbers)[16]>
struct TableWeights {
  static constexpr WeightCodec kCodec{kType, 4, false, true};
  template <class T>
  static auto load_codes(const uint8_t* p) {
    return T::load_numbers4(p, kNumbers);
  }
};
using NF4Weights = TableWeights<DType::kNF4, kNumbersOfNF4>;
using FP4Weights = TableWeights<DType::kFP4, kNumbersOfFP4>;

// As f16, whose exponent has a bias of 15 instead of 7, and 2^8 times that.
struct F8E4M3Weights {
  static constexpr WeightCodec kCodec{DType::kF8E4M3, 8, true, true};
  using Element = uint8_t;
  template <class T>
  static auto load(const uint8_t* p) {
    using Bytes [[gnu::vector_size(16)]] = uint8_t;
    using Words [[gnu::vector_size(32)]] = uint16_t;
    Bytes bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return widen<T>(__builtin_convertvector(bytes, Words));
  }
  template <class T>
  static auto load_codes(const uint8_t* p) {
    using Words [[gnu::vector_size(32)]] = uint16_t;
    Words both;
    std::memcpy(&both, p, sizeof both);
    return decltype(T::load_codes8(p)){widen<T>(both & 0xFF), widen<T>(both >> 8)};
  }

 private:
  template <class T, class Words>
  static auto widen(const Words& codes) {
    const Words magnitude = codes & 0x7F;
    Words half = (codes & 0x80) << 8 | magnitude << 7;
    half ^= reinterpret_cast<Words>(magnitude == 0x7F) & 0x4180;  // NaN: 0x7E00 in the place of 0x3F80
    uint16_t halves[16];
    std::memcpy(halves, &half, sizeof halves);
    return T::mul(T::load_f16(halves), T::set(256));
  }
};

template <class... W>
struct CodecList {};
using WeightCodecs = CodecList<F32Weights, F16Weights, BF16Weights, U4Weights, U8Weights, F8E4M3Weights,
                               NF4Weights, FP4Weights>;

}  // namespace ark
