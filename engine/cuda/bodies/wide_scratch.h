// What wide tiles of a matrix product (bodies/wide_pieces.h) keep in scratch.
#pragma once

#include "engine/cuda/call.h"

namespace ark::cuda {

// Scratch: borders of pieces; rooms of x, of a slice each; sums that wait; in the end sums, of each half [rows][64].
// Gated: the first weight's behind the second's, as ProductOutput has them.
inline constexpr bool kWideIsExact = kWideRows == kExactWideRows;
inline constexpr int kWideRooms = kWideIsExact ? kTiles.wide_rooms : 3, kWideParts = kWideIsExact ? 2 : 1,
                     kWideOctets = kWideRows > 0 ? kWideRows / kWideReaders / 8 : 2;
// In a room 16-bit parts of a row's sixteen elements lie together, then their rests if they are multiplied.
inline constexpr int kWidePitch = kLongestSlice * kWideParts / 2 + 4;  // floats, as XRows has it
inline constexpr int kWideRoomFloats = kWideRows * kWidePitch;
inline constexpr int kWideSumFloats = 3 * kWideRows * 64;  // of both halves, and a node of groups
inline constexpr int kWideSharedLevels = kWideIsExact ? kTiles.wide_levels : 0;
inline constexpr u32 kWideScratchBytes =
    kScratchBytes + (kWideIsExact ? static_cast<u32>(kTiles.wide_stages) * kStageBytes : 0);
inline constexpr u32 kWideFloats = kWideRooms * kWideRoomFloats + kWideSharedLevels * kWideLevelFloats;
// Tiles of kSlimWideRows at most take 2^this times less, so that the ring has more stages in steps of so many rows.
inline constexpr int kSlimBits = kWideIsExact ? 1 : 2;
static_assert(kWideRows == 0 || kWideRows == kSlimWideRows << kSlimBits);
// Whether they fit, all, and slim ones of the steps of the fewest rows that take any (product_tiles.cc).
inline constexpr u32 kSlimScratchBytes =
    scratch_of(1 + (kWideIsExact ? kWarpRows : kFewRows), kWarpRows, kScratchBytes);
static_assert(kWideRows == 0 || (kBorderBytes + kWideSumFloats * 4 <= kScratchBytes &&
                                 kBorderBytes + kWideFloats * 4 <= kWideScratchBytes &&
                                 kBorderBytes + (kWideSumFloats >> kSlimBits) * 4 <= kSlimScratchBytes &&
                                 kBorderBytes + (kWideFloats >> kSlimBits) * 4 <= kSlimScratchBytes));
ARK_DEVICE float* wide_scratch(const Block& b) { return reinterpret_cast<float*>(b.scratch + kBorderBytes); }
ARK_DEVICE float* wide_sums(const Block& b, const Stream& s, int half, i32 rows) {
  return wide_scratch(b) + (s.second != 0 ? 1 - half : half) * rows * 64;
}

}  // namespace ark::cuda
