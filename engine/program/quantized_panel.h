// How a quantized weight lies in its panels (Layout::kPanels, stored as u4 or u8).
//
// A panel is cut along K into blocks of `block` rows; all are there whole, rows behind K being zeros:
//   f32 scales [panel], u8 zeros [panel], codes of block / 2 pairs of rows.
// A pair of rows k, k + 1 (k even): u4: bytes [panel], low bits row k, high bits row k + 1; u8: bytes
// [panel][2]. So one load brings two rows, and two k's of one column, which tensor cores want together, are
// neighbours. The element is (code - zero) * scale: one exact f32 subtraction, one f32 product. Nothing that
// follows differs from a weight stored as f32: the same bits.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace ark {

// Bytes of the codes of one column in two rows.
constexpr int64_t pair_bytes(DType stored) { return stored == DType::kU4 ? 1 : 2; }

constexpr int64_t panel_block_bytes(DType stored, int64_t panel, int64_t block) {
  return panel * (4 + 1 + block / 2 * pair_bytes(stored));
}

// From a block's start.
constexpr int64_t zeros_offset(int64_t panel) { return panel * 4; }
constexpr int64_t codes_offset(int64_t panel) { return panel * 5; }

constexpr int64_t panel_blocks(int64_t k, int64_t block) { return (k + block - 1) / block; }

// A block with its scales fits one stage of a device's ring of weights (engine/cuda/image.h).
constexpr int32_t kMaxPanelBlock4 = 128, kMaxPanelBlock8 = 64, kMinPanelBlock = 8;
constexpr bool is_panel_block(DType stored, int64_t block) {
  return block % 2 == 0 && block >= kMinPanelBlock &&
         block <= (stored == DType::kU4 ? kMaxPanelBlock4 : kMaxPanelBlock8);
}

}  // namespace ark
