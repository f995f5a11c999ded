// How an instance's tiles are dealt to the processors of a rank, and how those of a matrix product are cut. One place
// for the loop on the device and for the host, which replays it (engine/cuda/cost). On the device behind dma/device.h.
#pragma once

#include "engine/cuda/image.h"

#if !defined(ARK_DEVICE)
#define ARK_DEVICE inline
#endif
// A function of its own: a case keeps its registers to itself, and compiles apart.
#if defined(__CUDACC__)
#define ARK_APART __device__ __noinline__
#else
#define ARK_APART inline
#endif

namespace ark::cuda {

// ---- numbers

// v > 0, rounded down.
ARK_DEVICE int log2_of(u32 v) {
#if defined(__CUDACC__)
  return 31 - __clz(static_cast<int>(v));
#else
  return 31 - __builtin_clz(v);
#endif
}

// a >= 0 and b > 0. Apart: some twenty instructions, for where it is not in an inner loop.
struct Division {
  i32 quotient, rest;
};
ARK_APART Division divide(i32 a, i32 b) {
  const u32 quotient = static_cast<u32>(a) / static_cast<u32>(b);
  return {static_cast<i32>(quotient), static_cast<i32>(static_cast<u32>(a) - quotient * static_cast<u32>(b))};
}

// ---- tiles of an instance

struct Tiles {
  i64 first, last;
};
// engine/program/program.h's tiles_of. Apart: divisions of 64 bits are much code.
ARK_APART Tiles tiles_of(i64 grid, int processor, int processors) {
  const auto border = [&](int p) {
    if (grid < 1 << 20)  // processors are fewer than 2^11
      return static_cast<i64>(static_cast<u32>(grid) * static_cast<u32>(p) / static_cast<u32>(processors));
    return grid * p / processors;
  };
  return {border(processor), border(processor + 1)};
}

// A processor's place among those that share an instance's tiles, the first of which is number `base`.
ARK_DEVICE int place_from(int processor, i32 base, int processors) {
  const int place = processor - base;
  return place < 0 ? place + processors : place;
}

// One tile each, or ranges of them.
ARK_DEVICE Tiles dealt(i64 grid, int place, int processors) {
  const i64 own = place, next = own + 1;
  return grid > processors ? tiles_of(grid, place, processors)
                           : Tiles{own < grid ? own : grid, next < grid ? next : grid};
}

// What a processor adds to an instance's counter; 0: it takes no part. Those without tiles neither wait nor signal, and
// who has the first tile raises the counter for them; but `all` do where messages are counted, and in the mode of
// barriers.
ARK_DEVICE i32 raises_of(i64 grid, int place, int processors, bool all) {
  if (all) return 1;
  const int taking = grid < 1 ? 1 : static_cast<int>(grid < processors ? grid : i64{processors});
  return place == 0 ? 1 + processors - taking : place < taking;
}

// ---- tiles of a matrix product

// How they lie in a step of `m` rows.
struct StreamTiles {
  i32 rows, panels, blocks, groups;
  int group_bits;  // 2^group_bits groups
  i32 pieces;      // of a tile
  i64 grid;
  ARK_DEVICE StreamTiles(const Stream& s, i32 m, i32 row_block = kRowBlock)
      : rows(m),
        panels(s.panels),
        blocks((m + row_block - 1) / row_block),
        groups(m <= kFewRows ? s.few_groups
               : blocks == 1 ? s.some_groups
                             : s.most_groups),
        group_bits(log2_of(static_cast<u32>(groups))),
        pieces(s.pieces >> group_bits),
        grid(static_cast<i64>(panels) * blocks << group_bits) {}
};
struct StreamTile {
  i32 group, block = 0, panel;
  ARK_DEVICE StreamTile(const StreamTiles& t, i32 tile)
      : group(tile & (t.groups - 1)), panel(tile >> t.group_bits) {
    if (t.blocks == 1) return;
    const Division by_block = divide(panel, t.blocks);
    block = by_block.rest, panel = by_block.quotient;
  }
};

// Up to kFewRows rows each warp takes whole pieces, a batch of them at once: as many, a power of two, as there is room
// for in a block's scratch beside the tree's sums, and those of the first one of two products. Elements of x's rows in
// it: batch_columns().
inline constexpr u32 kPlaceBytes = kLargeTiles.row_block * 16;  // of rows in pages: bodies/finished_tile.h
// Of pieces, and of rows in pages; at the start of the scratch.
inline constexpr u32 kBorderBytes = (kMaxPieces + 4) * 4 + kPlaceBytes;
ARK_BOTH constexpr i32 sum_pitch(i32 panel) {
  return panel + 4;
}  // floats of a row of sums; rows in different banks
ARK_DEVICE i32 batch_columns(i32 count, i32 longest_piece) { return (count * longest_piece + 3) / 4 * 4 + 8; }
ARK_DEVICE i32 batch_of(i32 pieces, i32 longest_piece, i32 rows, i32 panel, bool keeps, u32 scratch_bytes) {
  const i32 sums = log2_of(static_cast<u32>(pieces)) + 1 + keeps;
  const i32 room = static_cast<i32>(scratch_bytes - kBorderBytes) / 4 - sums * rows * panel;
  i32 count = pieces;
  while (count > 1 && rows * (batch_columns(count, longest_piece) + count * sum_pitch(panel)) > room)
    count /= 2;
  return count;
}
// Beyond, all warps share each piece: those whose x is in the scratch at once.
ARK_DEVICE i32 shared_turn(i32 longest_piece) {
  const i32 count = divide(kPieceRows, longest_piece).quotient;
  return count > 1 ? count : 1;
}

}  // namespace ark::cuda
