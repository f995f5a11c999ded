// Weights stored as codes: what their codes stand for, and windows of them.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ir/constant.h"

namespace ark {

// A matrix [rows, columns] whose element is (code - zero) * scale, one f32 subtraction (exact) and one f32
// product, with the zero and the scale of its block: `block` consecutive elements along `axis`, counted from
// 0, the last block of a row or column possibly shorter. As MatMulNBits, DequantizeLinear and
// GatherBlockQuantized define it. With offsets it is code * scale + offset, rounded once: GGUF's Q4_1.
// All payloads are read in place; nothing is unpacked ahead of time.
struct Quantized {
  int64_t rows = 0, columns = 0;
  int32_t bits = 4;        // of a code: 2, 4 or 8; packed from the low bits of each byte on
  bool is_signed = false;  // codes and zeros: two's complement
  // Codes are numbers of this type, of `bits` bits and without zeros; kUndefined: integers.
  // NF4's and FP4's are u8 as bitsandbytes packs them, each byte's first in its high bits.
  DType floating = DType::kUndefined;
  int axis = 1;       // that blocks run along: 0 rows, 1 columns
  int64_t block = 0;  // > 0
  ConstantPtr codes;  // bytes; element (r, c) is number r * code_stride + c
  int64_t code_stride = 0;
  ConstantPtr scales;  // f32, f16 or bf16: one; or [rows, blocks] (axis 1), [blocks, columns] (axis 0)
  ConstantPtr zeros;   // of `bits` bits, like scales, element (i, j) number i * zero_stride + j; or null
  int64_t zero_stride = 0;
  int32_t default_zero = 0;  // without zeros
  ConstantPtr offsets;       // of the scales' type and shape; then there are no zeros; or null

  int64_t blocks() const { return ((axis == 0 ? rows : columns) + block - 1) / block; }
};

// The matrix as a lazy f32 constant: views of it cost nothing, materialise() decodes window by window.
// Null if the payloads are too short for the sizes, or of types other than above, or codes that are a
// transposed or sliced view: then it is not quantized in a way that this struct describes. Scales and zeros
// may be given in any shape of as many elements; zeros that are a view are copied.
ConstantPtr make_quantized(Quantized quantized, std::string name);

// True if both describe the same elements by the same payloads, seen through the same views.
bool same_payload(const Quantized& a, const Quantized& b);

// Rows [first, first + count) of the stored matrix with their codes, scales and zeros in memory.
class QuantizedRows {
 public:
  // `quantized` must outlive it. Throws as WeightFile::read.
  QuantizedRows(const Quantized& quantized, int64_t first, int64_t count);

  int32_t bits() const { return q_.bits; }
  // Codes and zeros as unsigned numbers below 2^bits, whatever is stored: differences are the same.
  int code(int64_t row, int64_t column) const {
    return field(codes_, codes_skip_ + (row - first_) * q_.code_stride + column);
  }
  // The same as bytes of packed codes, the first in the low bits, from an element that starts one (else null); each
  // byte ^ byte_flips().
  const std::byte* packed(int64_t row, int64_t column) const {
    const int64_t bit = (codes_skip_ + (row - first_) * q_.code_stride + column) * q_.bits;
    return bit % 8 == 0 && turn_ == 0 ? codes_.data() + bit / 8 : nullptr;
  }
  std::byte byte_flips() const {
    return static_cast<std::byte>(q_.bits == 4 ? flip_ * 0x11 : q_.bits == 2 ? flip_ * 0x55 : flip_);
  }
  int zero(int64_t row, int64_t column) const {
    if (zeros_.empty()) return default_zero_;
    return field(zeros_, zeros_skip_ + block_at(row, column, q_.zero_stride));
  }
  float scale(int64_t row, int64_t column) const { return scales_[block_at(row, column, scale_stride_)]; }
  float offset(int64_t row, int64_t column) const { return offsets_[block_at(row, column, scale_stride_)]; }
  float value(int64_t row, int64_t column) const {
    if (!offsets_.empty())
      return std::fma(numbers_[code(row, column)], scale(row, column), offset(row, column));
    return (numbers_[code(row, column)] - static_cast<float>(zero(row, column))) * scale(row, column);
  }

 private:
  int field(const std::vector<std::byte>& bytes, int64_t i) const {
    const int64_t bit = i * q_.bits;
    const int stored = std::to_integer<int>(bytes[bit >> 3]) >> ((bit & 7) ^ turn_);
    return (stored & ((1 << q_.bits) - 1)) ^ flip_;
  }
  // Place of an element's block among those held, whose rows are `stride` apart.
  int64_t block_at(int64_t row, int64_t column, int64_t stride) const {
    if (single_) return 0;
    return q_.axis == 1 ? (row - first_) * stride + block_of(column)
                        : (block_of(row) - first_block_) * stride + column;
  }
  int64_t block_of(int64_t i) const { return shift_ >= 0 ? i >> shift_ : i / q_.block; }

  const Quantized& q_;
  int64_t first_;
  bool single_;              // one scale for all
  int flip_, default_zero_;  // the sign bit of signed codes: two's complement + 2^(bits-1) is unsigned
  int turn_;                 // 4: a byte's first code lies in its high bits
  int shift_;                // blocks of 2^shift_, -1: of another size
  int64_t first_block_ = 0;  // axis 0: of the rows held
  std::vector<std::byte> codes_, zeros_;
  int64_t codes_skip_ = 0, zeros_skip_ = 0;  // elements in front of the first
  std::vector<float> scales_, offsets_;      // no offsets: empty
  int64_t scale_stride_ = 0;
  std::array<float, 256> numbers_;  // by code
};

}  // namespace ark
