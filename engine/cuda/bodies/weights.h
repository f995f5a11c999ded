// What a matrix product asks of its weights in the ring: some rows of them times rows of x, by multiply-adds
// or on tensor cores.
#pragma once

#include "engine/cuda/bodies/codes.h"

namespace ark::cuda {

inline constexpr int kXStride = kPieceRows + 8;  // of rows of x in scratch; keeps them in different banks
inline constexpr int kXColumns = kRowBlock / 8;  // of a product on tensor cores: eight rows of x each

// 16 bytes of a weight as f32.
ARK_DEVICE void widen(const float* p, float (&to)[4]) {
  const dev::f32x4 v = *reinterpret_cast<const dev::f32x4*>(p);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}
template <class W>
ARK_DEVICE void widen(const W* p, float (&to)[8]) {
  const dev::u32x4 v = *reinterpret_cast<const dev::u32x4*>(p);
  const u32 pairs[4] = {v.x, v.y, v.z, v.w};
  ARK_UNROLL
  for (int i = 0; i < 4; ++i) {
    const dev::f32x2 two = dev::unpack<W>(pairs[i]);
    to[2 * i] = two.x, to[2 * i + 1] = two.y;
  }
}

// Eight rows of x from `x`, as the product's other operand: rows 0..7 and 8..15 of k, of the parts of x, then
// of the rests behind them.
template <class X>
ARK_DEVICE void load_parts(const Block& b, const X* x, u32 (&high)[2], u32 (&low)[2]) {
  const int matrix = b.lane / 8, line = b.lane % 8;
  u32 all[4];
  dev::ldmatrix_x4(all, x + (matrix / 2 * kRowBlock + line) * kXStride + matrix % 2 * 8);
  high[0] = all[0], high[1] = all[1], low[0] = all[2], low[1] = all[3];
}

// Numbers: a stage is [rows][kPanel] of W.
template <class W, int kPanel>
struct Weights {
  using X = W;  // what x is split into for tensor cores
  static constexpr int kVector = 16 / sizeof(W), kLanes = kPanel / kVector, kWarpRows = 32 / kLanes;

  static constexpr bool kTurned = has_turned_rows(kPanel, sizeof(W));

  // Rows [0, rows) of a stage, whose first is row `k` of the weight, times four rows of x from that column
  // on: a warp takes kWarpRows rows, every kConsumerWarps-th time; a lane sums up kVector columns.
  ARK_DEVICE static void fma(const Block& b, const Stream&, const u8* stage, i32 k, i32 rows, const float* x,
                             float (&sums)[4][kVector]) {
    const W* w = reinterpret_cast<const W*>(stage);
    const int piece = b.lane % kLanes;
    ARK_ROLLED
    for (i32 i = b.warp * kWarpRows + b.lane / kLanes; i < rows; i += kConsumerWarps * kWarpRows) {
      float values[kVector];
      widen(w + i * kPanel + (kTurned ? piece ^ (k + i) % kTurn : piece) * kVector, values);
      ARK_UNROLL
      for (int r = 0; r < 4; ++r) {
        const float v = x[r * kXStride + i];
        ARK_UNROLL
        for (int c = 0; c < kVector; ++c) sums[r][c] = dev::fma(v, values[c], sums[r][c]);
      }
    }
  }

  // 16 rows of a stage from `row` (both begin at multiples of 16), 16 columns from `column`, times `columns`
  // groups of eight rows of x from the column of `row`.
  ARK_DEVICE static void mma(const Block& b, const Stream&, const u8* stage, i32 row, int column, const X* x,
                             int columns, float (&sums)[kXColumns][4]) {
    const int matrix = b.lane / 8, line = b.lane % 8, piece = column / 8 + matrix % 2;
    const W* w = reinterpret_cast<const W*>(stage) + (row + matrix / 2 * 8 + line) * kPanel;
    u32 a[4];
    dev::ldmatrix_x4_trans(a, w + (kTurned ? piece ^ line : piece) * 8);
    ARK_UNROLL
    for (int c = 0; c < kXColumns; ++c) {
      if (c >= columns) break;
      u32 high[2], low[2];
      load_parts(b, x + c * 8 * kXStride, high, low);
      dev::mma_m16n8k16<W>(sums[c], a, high);
      dev::mma_m16n8k16<W>(sums[c], a, low);
    }
  }
};

// Codes: a stage is whole blocks. On tensor cores the products are of codes minus zeros, exact in bf16; a
// block's scale multiplies their sum. With offsets only fma() is used.
template <int kBits, BlockTerms kTerms, int kPanel>
struct Weights<Codes<kBits, kTerms>, kPanel> {
  using Q = Codes<kBits, kTerms>;
  using X = dev::bf16;
  static constexpr int kVector = 8, kLanes = kPanel / kVector, kWarpPairs = 32 / kLanes;

  struct Place {
    CodeBlock<Q> block;
    i32 row;  // in it
  };
  ARK_DEVICE static Place place_of(const Stream& s, const u8* stage, i32 row) {
    const i32 unit = static_cast<i32>(dev::multiply_high(static_cast<u32>(row), s.unit_reciprocal));
    return {{stage + unit * s.unit_bytes, kPanel}, row - unit * s.unit_rows};
  }

  ARK_DEVICE static void fma(const Block& b, const Stream& s, const u8* stage, i32, i32 rows, const float* x,
                             float (&sums)[4][kVector]) {
    ARK_ROLLED
    for (i32 i = (b.warp * kWarpPairs + b.lane / kLanes) * 2; i < rows;
         i += kConsumerWarps * kWarpPairs * 2) {
      float even[8], odd[8];
      const Place place = place_of(s, stage, i);
      place.block.numbers(place.row / 2, b.lane % kLanes * kVector, even, odd);
      const bool has_odd = i + 1 < rows;  // behind K there is no x
      ARK_UNROLL
      for (int r = 0; r < 4; ++r) {
        const float v = x[r * kXStride + i], w = has_odd ? x[r * kXStride + i + 1] : 0.0f;
        ARK_UNROLL
        for (int c = 0; c < kVector; ++c) sums[r][c] = dev::fma(w, odd[c], dev::fma(v, even[c], sums[r][c]));
      }
    }
  }

  ARK_DEVICE static void mma(const Block& b, const Stream& s, const u8* stage, i32 row, int column,
                             const X* x, int columns, float (&sums)[kXColumns][4]) {
    const Place place = place_of(s, stage, row);
    const CodeBlock<Q>& block = place.block;
    const int first = column + b.lane / 4, pair = place.row / 2 + b.lane % 4;
    u32 a[4];
    ARK_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float zero = block.zero(first + i * 8);
      ARK_UNROLL
      for (int half = 0; half < 2; ++half) {
        const dev::f32x2 two = block.differences(pair + half * 4, first + i * 8, zero);
        a[half * 2 + i] = dev::pack<X>(two.x, two.y);
      }
    }
    const float scales[2] = {block.scale(first), block.scale(first + 8)};
    ARK_UNROLL
    for (int c = 0; c < kXColumns; ++c) {
      if (c >= columns) break;
      u32 high[2], low[2];
      load_parts(b, x + c * 8 * kXStride, high, low);
      float products[4] = {};
      dev::mma_m16n8k16<X>(products, a, high);
      dev::mma_m16n8k16<X>(products, a, low);
      ARK_UNROLL
      for (int i = 0; i < 4; ++i) sums[c][i] = dev::fma(scales[i / 2], products[i], sums[c][i]);
    }
  }
};

}  // namespace ark::cuda
