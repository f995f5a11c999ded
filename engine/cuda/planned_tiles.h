// How an image's products will be cut, while their streams hold offsets where devices find addresses.
#pragma once

#include "engine/cuda/dealing.h"
#include "engine/cuda/image.h"

namespace ark::cuda {

// In the place of an offset: there is none.
inline constexpr u64 kNowhere = ~u64{0};

// That a tile takes pieces of.
inline int32_t weights_of(const Stream& s) { return s.second == kNowhere ? 1 : 2; }
// Whether the norm behind takes up what its tiles share.
inline bool are_taken_up(const Stream& s) { return s.partials != kNowhere && s.arrivals == kNowhere; }

// In a step of so many rows.
inline StreamTiles planned_tiles(Stream s, i32 rows, const TileShape& tiles) {
  s.second = weights_of(s) > 1;
  return {s, rows, tiles.row_block};
}

}  // namespace ark::cuda
