// A product's tile that no phase behind it takes up again: whole heads of queries, keys or values, which whoever
// finishes the tile rotates and puts into their pages (engine/cuda/appended.h says when, bodies/appended_tile.h how).
#pragma once

#include "engine/cuda/call.h"

namespace ark::cuda {

ARK_DEVICE RowPlace place_of(const Block& b, i64 token) {
  const dev::u32x4 words = dev::ld_global(at<const dev::u32x4>(b.rank->places) + token);
  return {static_cast<i32>(words.x), static_cast<i32>(words.y), static_cast<i32>(words.z), 0};
}

// Of a tile's rows, in scratch.
static_assert(kRowBlock * sizeof(RowPlace) <= kPlaceBytes);
ARK_DEVICE RowPlace* row_places(u8* scratch) {
  return reinterpret_cast<RowPlace*>(scratch + kBorderBytes - kPlaceBytes);
}
// Of `rows` rows of x from `first` on. One warp's: the one that has the fewest borders of pieces to fetch.
ARK_APART void look_up_places(const LoopParameters& p, i32 first, i32 rows) {
  const Block b = open_block(p, 0, 0);
  if (b.warp != kConsumerWarps - 1 || b.lane >= rows) return;
  const RowPlace place = place_of(b, first + b.lane);
  row_places(b.scratch)[b.lane] = place;
}

// Tile of the instance that many bytes behind dev::shared(), in a step of so many rows; its outputs [rows][panel]
// behind their epilogue are where ProductOutput::tile_sums is. What else is known of it takes registers from the
// product.
struct FinishedTile {
  u32 instance;
  i32 number, rows;
  // Of a wide tile: the half, and kRowBlock of its rows from `first_row` on, whose outputs lie `outputs` floats behind.
  i32 half, first_row;
  u32 outputs;
};
ARK_DEVICE FinishedTile finished_part(const Call& call, i32 number, i32 rows, i32 half, i32 first_row,
                                      u32 outputs) {
  return {instance_offset(call), number, rows, half, first_row, outputs};
}
ARK_DEVICE FinishedTile finished_tile(const Call& call, i32 number, i32 rows) {
  return finished_part(call, number, rows, 0, 0, 0);
}
// Of the kernel (engine/cuda/codegen.cc). All consumer threads; each has written its outputs.
ARK_APART void use_tile(const LoopParameters& p, FinishedTile tile);

}  // namespace ark::cuda
