// x of a wide tile of a matrix product (bodies/wide_pieces.h), slice by slice in rooms of scratch.
#pragma once

#include "engine/cuda/bodies/wide_scratch.h"
#include "engine/cuda/bodies/x_rows.h"

namespace ark::cuda {

// Own: Weights of 64 columns (bodies/weights.h).
template <class Own>
struct WideSlices {
  // What can be worked out again is: registers are few.
  Block& b;
  const u32 instance;
  const i32 row0, rows;           // of x
  const i32 first_piece, pieces;  // of the weight's, and how many

  ARK_DEVICE WideSlices(Block& block, u32 at_instance, const StreamTiles& tiles, const StreamTile& tile)
      : b(block),
        instance(at_instance),
        row0(tile.block * kWideRows),
        rows(dev::min(kWideRows, tiles.rows - row0)),
        first_piece(tile.group * tiles.pieces),
        pieces(tiles.pieces) {}

  // Of each warp; the last ones' rows may be copies of the last row.
  ARK_DEVICE i32 octets() const { return wide_octets(rows); }
  ARK_DEVICE i32 border(i32 piece) const {
    return reinterpret_cast<const i32*>(b.scratch)[first_piece + piece];
  }

  // Of floats of a tile of kWideRows, those that this one takes.
  ARK_DEVICE u32 part_of(int floats) const {
    return static_cast<u32>(floats) >> (rows <= kSlimWideRows || ARK_BUG(wide_all_slim) ? kSlimBits : 0);
  }
  // A piece has 2^this slices, of which the last may have no columns; of numbers a constant.
  ARK_DEVICE int slice_bits() const {
    if constexpr (Own::kAreCodes) return cuda::slice_bits(instance_at(instance).stream.longest_piece);
    return 0;
  }
  ARK_DEVICE i32 first_column(i32 slice) const {
    const int bits = slice_bits();
    return border(slice >> bits) + (slice & bits) * kLongestSlice;
  }
  ARK_DEVICE i32 columns_of(i32 slice) const {
    const int bits = slice_bits();
    const i32 left = border((slice >> bits) + 1) - first_column(slice);
    return bits == 0 ? left : dev::min(left, kLongestSlice);
  }
  ARK_DEVICE XRows room_of(i32 slice) const {
    return {wide_scratch(b) + static_cast<u32>(slice) % kWideRooms * part_of(kWideRoomFloats), kWidePitch, 0,
            rows};
  }

  // By runs of 16 bytes, of which a thread has one of every kRowsAtOnce-th row. Columns are multiples of sixteen, of
  // which parts, and rests if they are multiplied, are so many runs.
  static constexpr int kRuns = kLongestSlice * kWideParts / 8, kRowsAtOnce = kConsumers / kRuns;
  // Of a slice: from its first column, of its room's row, in floats.
  ARK_DEVICE int run_in_memory() const {
    const int run = b.thread % kRuns;
    return run / (2 * kWideParts) * 16 + run % (2 * kWideParts) * 4;
  }
  ARK_DEVICE float* run_in_room(const XRows& room, i32 row) const {
    return row_of<float>(room, row) + b.thread % kRuns * 4;
  }
  // Rows of the slice's runs, as they are copied: for those that are not there the last one's.
  ARK_DEVICE i32 end_of_runs(i32 slice) const {
    const i32 k = b.thread % kRuns / (2 * kWideParts) * 16;
    return k < columns_of(slice) ? octets() * 8 * kWideReaders : 0;
  }
  // Of the tile's first row, in memory.
  ARK_DEVICE const float* first_run(i32 slice) const {
    return at<const float>(b.words->x) + static_cast<i64>(row0) * b.words->x_pitch + first_column(slice) +
           run_in_memory();
  }
  // Starts copying x of slice `slice`, if there is one. One group of copies in either case.
  ARK_DEVICE void copy_x(i32 slice) const {
    if (slice < pieces << slice_bits()) {
      const XRows to = room_of(ARK_BUG(wide_copy_into_use) ? slice + 1 : slice);
      const i32 end = end_of_runs(slice), pitch = b.words->x_pitch;
      const float* const x = first_run(slice);
      ARK_ROLLED
      for (i32 row = b.thread / kRuns; row < end; row += kRowsAtOnce)
        dev::cp_async16(run_in_room(to, row), x + static_cast<i64>(dev::min(row, rows - 1)) * pitch);
    }
    dev::cp_async_commit();
  }
  // Told x of which this thread's copies have arrived, maybe before it was there (await_told_parts()).
  ARK_DEVICE void look_at_x(i32 slice) const {
    const i32 end = end_of_runs(slice);
    ARK_ROLLED
    for (i32 row = b.thread / kRuns; row < end; row += kRowsAtOnce) {
      auto* const to = reinterpret_cast<dev::u32x4*>(run_in_room(room_of(slice), row));
      if (is_there(*to)) continue;
      const auto* const from = reinterpret_cast<const dev::u32x4*>(
          first_run(slice) + static_cast<i64>(dev::min(row, rows - 1)) * b.words->x_pitch);
      dev::u32x4 v;
      wait_without_calls(b, from, 0, [&] {
        v = dev::ld_words(from);
        return is_there(v);
      });
      *to = v;
    }
    dev::sync_warp();
  }
};

}  // namespace ark::cuda
