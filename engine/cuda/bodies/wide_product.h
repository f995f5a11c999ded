// A matrix product of wide tiles: what the sums of their pieces come to (bodies/wide_pieces.h), by the panel.
#pragma once

#include "engine/cuda/bodies/product_output.h"
#include "engine/cuda/bodies/wide_pieces.h"

namespace ark::cuda {

// X: what outputs are stored as, where they are stored as parts.
template <class X>
struct WideOutput : ProductOutput<64, true, X> {
  using Output = ProductOutput<64, true, X>;
  using Output::call, Output::s, Output::tiles, Output::tile_sums, Output::row0, Output::rows;
  const i32 number;
  const StreamTile tile;
  const WideHalves halves;

  ARK_DEVICE WideOutput(const Call& c, i32 tile_number)
      : Output(c), number(tile_number), tile(tiles, tile_number), halves(s, tile) {
    row0 = tile.block * kWideRows;
    rows = dev::min(kWideRows, tiles.rows - row0);
  }

  // Outputs of a panel, whose sums are at tile_sums, are used here.
  ARK_DEVICE void use(int half) const {
    ARK_ROLLED
    for (i32 first = 0; first < rows; first += kRowBlock) {
      const u32 outputs = static_cast<u32>(tile_sums - wide_scratch(call.b)) + static_cast<u32>(first * 64);
      use_tile(call.b.p, finished_part(call, number, tiles.rows, half, first, outputs));
      consumers_sync();  // the next rows' places lie where these did
    }
  }

  // Of a tile that shares outputs. True: all groups of them are there.
  ARK_DEVICE bool share() const {
    ARK_ROLLED
    for (int h = 0; h < halves.count; ++h)
      this->hand_in(tile.group, halves.panel_of(h), halves.is_gated ? h : 0, wide_sums(call.b, s, h, rows));
    if (s.arrivals == 0) return false;  // who reads the output adds them up
    if (tells_sums(call)) {             // who has the last group waits, as join() says
      if (tile.group + 1 < tiles.groups && !ARK_BUG(every_one_gathers_wide)) return false;
      consumers_sync();
      return true;
    }
    const BlockWords& words = *call.b.words;
    if (tile.group + 1 < tiles.groups && number + 1 < words.last_tile)
      return false;  // the next is of the same output
    return this->count_in(tile, dev::min(tile.group, number - words.first_tile) + 1);
  }

  ARK_DEVICE void finish() {
    const bool is_shared = hands_in(call, tiles);
    const bool is_whole = !is_shared || share();
    ARK_ROLLED
    for (int h = halves.is_gated ? 1 : 0; is_whole && h < halves.count; ++h) {
      const i32 panel = halves.panel_of(h);
      tile_sums = is_shared ? wide_scratch(call.b) : wide_sums(call.b, s, h, rows);
      if (is_shared) this->gather(panel);
      this->write(panel, false);
      if (this->is_used_here()) use(h);
      if (is_shared) consumers_sync();  // the other half's sums take the room of these
    }
    // All of x has been looked at. What a thread's copies have brought once comes again: a thread copies the same runs
    // of each tile, by way of L2 alone (cp.async.cg), where there is no older word any more. PTX does not say so.
    if (call.b.thread == 0 && number + 1 - call.b.words->first_tile >= tiles.groups) call.b.words->x_told = 0;
    consumers_sync();  // the next tile's x takes the sums' room
  }
};
// What the sums come to. True: it was the block's last tile.
template <class X>
ARK_APART bool finish_wide(const LoopParameters& p, u32 instance, i32 number) {
  Block b = open_turn_block(p);
  WideOutput<X>({b, instance_at(instance), nullptr}, number).finish();
  return number + 1 == b.words->last_tile;
}

// Of a product whose x is told, before it copies what tile `first` takes: until the first columns of each row are
// there, for mostly all are then.
ARK_APART void await_wide_x(const LoopParameters& p, u32 instance, i32 rows, i32 first) {
  constexpr int kLanes = kConsumers / kMostToldRows;  // of a row
  static_assert(kConsumers % kMostToldRows == 0 && kMostToldRows <= kExactWideRows, "one block of rows");
  const Block b = open_block(p, 0, 0);
  const Instance& i = instance_at(instance);
  const StreamTiles tiles(i.stream, rows);
  const i32 row = b.thread / kLanes,
            column = reinterpret_cast<const i32*>(b.scratch)[StreamTile(tiles, first).group * tiles.pieces] +
                     b.thread % kLanes * 4;
  const auto* const words =
      at<const dev::u32x4>(b.words->x) + (static_cast<i64>(row) * b.words->x_pitch + column) / 4;
  if (row < rows && column < i.stream.k)
    wait_without_calls(b, words, 0, [&] { return is_there(dev::ld_words(words)); });
  dev::sync_warp();
}
// Tiles from `first` on, of which there are some.
template <class W>
ARK_APART void run_wide(const LoopParameters& p, u32 instance, i32 first) {
  ARK_ROLLED
  for (i32 t = first;; ++t) {
    wide_pieces<W>(p, instance, t);
    if (finish_wide<typename Weights<W, 64>::X>(p, instance, t)) return;
  }
}

}  // namespace ark::cuda
