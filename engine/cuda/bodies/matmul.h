// x [m, k] times a packed weight [k, n], by tiles of kRowBlock rows x one panel of columns x a group of pieces of k.
//
// A piece (at most kPieceRows rows of the weight) is added up in an order that the weight alone decides;
// pieces are added as a balanced pairwise tree, inside a tile, then over the tiles of one output (the last
// one there adds them up). So a result does not depend on how tiles are dealt. The ring brings the weights;
// only x is waited for.
//
// Paths. kFma: f32 products and sums, four rows of x at a time. kMma: tensor cores with the weight as A (16
// columns of it are the 16 rows of the product); x is split into two 16-bit parts, whose products are exact
// in f32: what is lost of x is below 2^-21 (f16, and x in f16's range) or 2^-16 (bf16, codes) of it. kMixed:
// kFma up to four rows.
#pragma once

#include "engine/cuda/bodies/weights.h"

namespace ark::cuda {

enum MatMulPath { kFma, kMma, kMixed };

// Rest of x behind its 16-bit part.
template <class W>
ARK_DEVICE float rest_of(float x) {
  return x - dev::to_f32(dev::from_f32<W>(x));
}

// (x, W, bias?, residual?, out). Size 0: epilogue bits.
template <class W, int kPanel, MatMulPath kPath>
struct MatMul : Quiet {
  // Scratch: x, sums of warps, then the levels of the tree: [level][kRowBlock][kPanel], level 0 the piece
  // just added up, level l + 1 the sum of 2^l pieces that waits for its right neighbour. Of the levels,
  // element e is touched by thread e % kConsumers only.
  using Own = Weights<W, kPanel>;
  using X = typename Own::X;
  static constexpr u32 kXBytes = kRowBlock * kXStride * 4, kPartBytes = kRowBlock * 512;
  static constexpr int kElements = kRowBlock * kPanel, kOwn = (kElements + kConsumers - 1) / kConsumers;
  static_assert(kXBytes + kPartBytes + kTiles.levels * kElements * 4 <= kScratchBytes);
  static_assert(kConsumerWarps * 4 * kPanel * 4 <= static_cast<int>(kPartBytes));
  static constexpr int kVector = Own::kVector, kLanes = Own::kLanes;

  const Call& call;
  const Stream s;
  const StreamTiles tiles;
  float* levels;

  ARK_DEVICE explicit MatMul(const Call& c)
      : call(c),
        s(load_stream(c.b.rank->streams, c.i.stream)),
        tiles(s, c.size(s.m)),
        levels(reinterpret_cast<float*>(c.b.scratch + kXBytes + kPartBytes)) {}

  ARK_DEVICE float* parts() const { return reinterpret_cast<float*>(call.b.scratch + kXBytes); }

  // ---- x

  // Four elements; k is a multiple of four.
  template <bool kSplit>
  ARK_DEVICE void put_x(int row, int k, dev::f32x4 v) const {
    const int place = row * kXStride + k;
    if constexpr (kSplit) {
      X* high = reinterpret_cast<X*>(call.b.scratch) + place;
      *reinterpret_cast<dev::u32x2*>(high) = {dev::pack<X>(v.x, v.y), dev::pack<X>(v.z, v.w)};
      *reinterpret_cast<dev::u32x2*>(high + kRowBlock * kXStride) = {
          dev::pack<X>(rest_of<X>(v.x), rest_of<X>(v.y)), dev::pack<X>(rest_of<X>(v.z), rest_of<X>(v.w))};
    } else {
      *reinterpret_cast<dev::f32x4*>(reinterpret_cast<float*>(call.b.scratch) + place) = v;
    }
  }

  // Rows [row, row + rows) of x, columns [first, last), into scratch; rows up to `padded` become zeros.
  template <bool kSplit>
  ARK_DEVICE void load_x(i32 row, i32 rows, i32 padded, i32 first, i32 last) const {
    const i32 n = last - first;
    const float* x = call.operand<const float>(0) + static_cast<i64>(row) * s.k + first;
    const bool aligned = (s.k % 4 | first % 4) == 0;  // then whole quarters are there, if of the next piece
    const i32 quarter = (n + 3) / 4;
    ARK_ROLLED
    for (i32 i = call.b.thread; i < padded * quarter; i += kConsumers) {
      const i32 r = i / quarter, k = i % quarter * 4;
      const float* from = x + static_cast<i64>(r) * s.k + k;
      dev::f32x4 v = {0, 0, 0, 0};
      if (r < rows && aligned) {
        v = dev::ld_global(reinterpret_cast<const dev::f32x4*>(from));
      } else if (r < rows) {
        v.x = dev::ld_global(from);
        if (k + 1 < n) v.y = dev::ld_global(from + 1);
        if (k + 2 < n) v.z = dev::ld_global(from + 2);
        if (k + 3 < n) v.w = dev::ld_global(from + 3);
      }
      put_x<kSplit>(r, k, v);
    }
  }

  // ---- one piece by multiply-adds: four rows of x at a time, while the piece stays in the ring

  // Adds the lanes' sums, then the warps': level 0 of rows [row, row + 4).
  ARK_DEVICE void fma_reduce(i32 row, float (&sums)[4][kVector]) const {
    float* to = parts() + call.b.warp * 4 * kPanel;
    ARK_UNROLL
    for (int r = 0; r < 4; ++r) {
      ARK_UNROLL
      for (int c = 0; c < kVector; ++c) {
        ARK_UNROLL
        for (int distance = kLanes; distance < 32; distance *= 2) {
          if (ARK_BUG(divergent_collective) && call.b.lane == 31) continue;
          sums[r][c] += dev::shfl_xor(sums[r][c], distance);
        }
        if (call.b.lane < kLanes) to[r * kPanel + call.b.lane * kVector + c] = sums[r][c];
      }
    }
    consumers_sync();
    const i32 first = row * kPanel, own = (call.b.thread - first) & (kConsumers - 1);
    if (own < 4 * kPanel) {
      float v[kConsumerWarps];
      ARK_UNROLL
      for (int w = 0; w < kConsumerWarps; ++w) v[w] = parts()[w * 4 * kPanel + own];
      levels[first + own] = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
    consumers_sync();
  }

  ARK_DEVICE void fma_piece(i32 rows, i32 first, i32 last) const {
    const float* x = reinterpret_cast<const float*>(call.b.scratch);
    load_x<false>(row0, rows, (rows + 3) / 4 * 4, first, last);
    if (!ARK_BUG(missing_scratch_barrier)) consumers_sync();
    ARK_ROLLED
    for (i32 row = 0; row < rows; row += 4) {
      float sums[4][kVector] = {};
      RingCursor cursor = call.b.cursor;
      ARK_ROLLED
      for (i32 k = first; k < last; k += s.rows_per_stage) {
        if (acquire_stage(call.b, cursor))
          Own::fma(call.b, s, stage_at(call.b, cursor), k, dev::min(s.rows_per_stage, last - k),
                   x + row * kXStride + k - first, sums);
        if (row + 4 >= rows) release_stage(call.b, cursor);
        cursor.advance(call.b.p.stages);
      }
      fma_reduce(row, sums);
      if (row + 4 >= rows) call.b.cursor = cursor;
    }
  }

  // ---- one piece by tensor cores

  static constexpr int kColumnGroups = kPanel / 16, kRowGroups = kConsumerWarps / kColumnGroups;
  static_assert(kRowGroups * kElements * 4 <= static_cast<int>(kPartBytes));

  ARK_DEVICE void mma_reduce(int columns, const float (&sums)[kXColumns][4]) const {
    const int group = call.b.warp / kColumnGroups,
              column = call.b.warp % kColumnGroups * 16 + call.b.lane / 4;
    float* to = parts() + group * kElements;
    ARK_UNROLL
    for (int c = 0; c < kXColumns; ++c) {
      if (c >= columns) break;
      ARK_UNROLL
      for (int i = 0; i < 4; ++i)
        to[(c * 8 + call.b.lane % 4 * 2 + i % 2) * kPanel + column + i / 2 * 8] = sums[c][i];
    }
    consumers_sync();
    ARK_ROLLED
    for (int e = call.b.thread; e < columns * 8 * kPanel; e += kConsumers) {
      float v = 0;
      ARK_UNROLL
      for (int g = 0; g < kRowGroups; ++g) v += parts()[g * kElements + e];
      levels[e] = v;
    }
    consumers_sync();
  }

  ARK_DEVICE void mma_piece(i32 rows, i32 first, i32 last) const {
    const int columns = (rows + 7) / 8;
    load_x<true>(row0, rows, columns * 8, first, last);
    consumers_sync();
    const int group = call.b.warp / kColumnGroups, column = call.b.warp % kColumnGroups * 16;
    const X* x = reinterpret_cast<const X*>(call.b.scratch);
    float sums[kXColumns][4] = {};
    ARK_ROLLED
    for (i32 k = first; k < last; k += s.rows_per_stage) {
      const u8* stage = stage_at(call.b, call.b.cursor);
      const i32 end = acquire_stage(call.b, call.b.cursor) ? dev::min(s.rows_per_stage, last - k) : 0;
      ARK_ROLLED
      for (i32 i = group * 16; i < end; i += kRowGroups * 16)
        Own::mma(call.b, s, stage, i, column, x + (k - first + i), columns, sums);
      release_stage(call.b, call.b.cursor);
      call.b.cursor.advance(call.b.p.stages);
    }
    mma_reduce(columns, sums);
  }

  // ---- trees and outputs

  // Level 0 is part number `number` of `count`: merges it into the tree. True: level 0 is the sum of all.
  ARK_DEVICE void merge(i32 number, i32 count, i32 rows) const {
    ARK_ROLLED
    for (int j = 0; j < kOwn; ++j) {
      const int e = j * kConsumers + call.b.thread;
      if (e >= rows * kPanel) break;
      float v = levels[e];
      int level = 0;
      for (; (number >> level & 1) != 0; ++level) v = levels[(level + 1) * kElements + e] + v;
      levels[(number + 1 < count ? level + 1 : 0) * kElements + e] = v;
    }
  }

  template <class F>
  ARK_DEVICE void for_outputs(i32 panel, i32 rows, F f) const {
    ARK_ROLLED
    for (int j = 0; j < kOwn; ++j) {
      const int e = j * kConsumers + call.b.thread;
      const i32 column = panel * kPanel + e % kPanel;
      if (e < rows * kPanel && column < s.n) f(e, static_cast<i64>(row0 + e / kPanel) * s.n + column, column);
    }
  }

  ARK_DEVICE void write(i32 panel, i32 rows) const {
    for_outputs(panel, rows, [&](int e, i64 element, i32 column) {
      call.operand<float>(4)[element] =
          epilogue(static_cast<u32>(call.i.sizes[0]), levels[e], call.operand<const float>(2), column,
                   call.operand<const float>(3), element);
    });
  }

  // Hands in the group's sums. True: this was the last tile of the output, level 0 is the sum of all.
  ARK_DEVICE bool join(const StreamTile& tile, i32 rows) const {
    float* partials = at<float>(s.partials);
    const i64 all = static_cast<i64>(tiles.rows) * s.n;
    for_outputs(tile.panel, rows,
                [&](int e, i64 element, i32) { partials[tile.group * all + element] = levels[e]; });
    consumers_sync();
    if (call.b.thread == 0) {
      // Releases the block's partials, acquires the others'. The word only ever grows by `groups` a step.
      u32* word = at<u32>(s.arrivals) + tile.panel * tiles.blocks + tile.block;
      const u32 before = dev::atom_add<dev::Scope::gpu>(word, 1u);
      call.b.words->last_arrival = (before + !ARK_BUG(early_join)) % static_cast<u32>(s.groups) == 0;
    }
    consumers_sync();
    if (call.b.words->last_arrival == 0) return false;
    ARK_ROLLED
    for (i32 g = 0; g < s.groups; ++g) {
      for_outputs(tile.panel, rows,
                  [&](int e, i64 element, i32) { levels[e] = dev::ld_global(partials + g * all + element); });
      merge(g, s.groups, rows);
    }
    return true;
  }

  i32 row0 = 0;  // of the tile

  ARK_DEVICE void run_tile(const StreamTile& tile) {
    const i32 pieces = s.pieces / s.groups;
    const i32* borders = at<const i32>(s.borders) + tile.group * pieces;
    row0 = tile.block * kRowBlock;
    const i32 rows = dev::min(kRowBlock, tiles.rows - row0);
    const bool few = kPath == kFma || (kPath == kMixed && tiles.rows <= 4);
    ARK_ROLLED
    for (i32 piece = 0; piece < pieces; ++piece) {
      const i32 first = dev::ld_nc(borders + piece), last = dev::ld_nc(borders + piece + 1);
      if constexpr (kPath == kFma) {
        fma_piece(rows, first, last);
      } else if constexpr (kPath == kMma) {
        mma_piece(rows, first, last);
      } else {
        few ? fma_piece(rows, first, last) : mma_piece(rows, first, last);
      }
      merge(piece, pieces, rows);
    }
    if (s.groups == 1 || join(tile, rows)) write(tile.panel, rows);
  }

  // ---- the case

  ARK_DEVICE static i64 grid(const Call& call) {
    const Stream s = load_stream(call.b.rank->streams, call.i.stream);
    return StreamTiles(s, call.size(s.m)).grid;
  }
  ARK_DEVICE static void run(const Call& call, Tiles own) {
    MatMul body(call);
    for (i64 t = own.first; t < own.last; ++t)
      body.run_tile(StreamTile(body.s, body.tiles, static_cast<i32>(t)));
  }
};

}  // namespace ark::cuda
