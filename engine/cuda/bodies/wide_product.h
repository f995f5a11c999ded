// Wide tiles of a matrix product, for steps of many rows (Numerics::kFast): up to kWideRows of x times two panels, so
// that weights and x are read from L2 a quarter as often as by tiles of kRowBlock rows times one panel.
//
// A warp takes a quarter of the rows, in eights, times one of the panels (the half); its sums stay in registers over
// all pieces of the tile, one after the other: other bits than the tree's of bodies/matmul.h. x is there in 16-bit
// parts (bodies/parts.h), of which rests are left out here: x is rounded as the weights are. Of each piece x is copied
// two pieces ahead into one of three rooms; one barrier a piece says that its x is there, and that the room of the
// piece before is free.
#pragma once

#include "engine/cuda/bodies/product_output.h"
#include "engine/cuda/bodies/weights.h"
#include "engine/cuda/ring.h"

namespace ark::cuda {

// Scratch: borders of pieces; rooms of x, of pieces of kLongestWide rows at most; in the end sums, of each half
// [rows][64]. Gated: the first weight's behind the second's, as ProductOutput has them.
inline constexpr int kLongestWide = kStageBytes / (64 * 2), kWideRooms = 3,
                     kWideOctets = kWideRows / kWideReaders / 8;
inline constexpr int kWidePitch = kLongestWide / 2 + 4;  // floats, as XRows has it
inline constexpr int kWideRoomFloats = kWideRows * kWidePitch;
inline constexpr int kWideSumFloats = 3 * kWideRows * 64;  // of both halves, and a node of groups
static_assert(kWideRooms * kWideRoomFloats <= kWideSumFloats);
inline constexpr bool kWideTilesFit = kBorderBytes + kWideSumFloats * 4 <= kScratchBytes;
ARK_DEVICE float* wide_scratch(const Block& b) { return reinterpret_cast<float*>(b.scratch + kBorderBytes); }
ARK_DEVICE float* wide_sums(const Block& b, const Stream& s, int half, i32 rows) {
  return wide_scratch(b) + (s.second != 0 ? 1 - half : half) * rows * 64;
}

// The sums of a tile. W: 16-bit numbers, in panels of 64 columns, whose pieces begin at multiples of 16 rows.
template <class W>
struct WidePieces {
  static_assert(has_turned_rows(64, sizeof(W)));
  static constexpr int kColumnGroups = 64 / 16;
  static_assert(kWideOctets % 2 == 0);  // two are loaded at once

  // What can be worked out again is: registers are few.
  Block& b;
  const Instance& i;
  const i32 row0, rows;           // of x
  const i32 first_piece, pieces;  // of the weight's, and how many
  const i32 halves;
  Sum sums[kWideOctets][kColumnGroups];

  ARK_DEVICE WidePieces(Block& block, const Instance& instance, const StreamTiles& tiles,
                        const StreamTile& tile)
      : b(block),
        i(instance),
        row0(tile.block * kWideRows),
        rows(dev::min(kWideRows, tiles.rows - row0)),
        first_piece(tile.group * tiles.pieces),
        pieces(tiles.pieces),
        halves(WideHalves(i.stream, tile).count) {}

  ARK_DEVICE int half() const { return b.warp / kWideReaders; }
  // Of each warp; the last ones' rows may be copies of the last row.
  ARK_DEVICE i32 octets() const { return wide_octets(rows); }
  ARK_DEVICE i32 first_row() const { return b.warp % kWideReaders * octets() * 8; }
  ARK_DEVICE i32 border(i32 piece) const {
    return reinterpret_cast<const i32*>(b.scratch)[first_piece + piece];
  }

  ARK_DEVICE XRows room_of(i32 piece) const {
    return {wide_scratch(b) + static_cast<u32>(piece) % kWideRooms * kWideRoomFloats, kWidePitch, 0, rows};
  }

  // Starts copying x of piece `piece`, if there is one; for rows that are not there the last one's. One group of copies
  // in either case.
  ARK_DEVICE void copy_x(i32 piece) const {
    if (piece < pieces) {
      const i32 first = border(piece), columns = border(piece + 1) - first, k = b.thread % 8 * 8,
                all = i.stream.k;
      const W* const x =
          part_at<const W>(at<const float>(i.product.x) + static_cast<i64>(row0) * all, first + k);
      const XRows to = room_of(ARK_BUG(wide_copy_into_use) ? piece + 1 : piece);
      ARK_UNROLL
      for (int n = 0; n < kWideRows * 8 / kConsumers; ++n) {
        const i32 row = b.thread / 8 + n * (kConsumers / 8);
        if (k >= columns || n >= octets()) continue;
        dev::cp_async16(row_of<W>(to, row) + k, x + static_cast<i64>(dev::min(row, rows - 1)) * all * 2);
      }
    }
    dev::cp_async_commit();
  }

  // Where a lane finds its lines of sixteen columns of a stage, and in a room of the warp's rows of x of two eights, of
  // which the second may be the first once more.
  ARK_DEVICE u32 weights_at(const u8* stage) const {
    const int matrix = b.lane / 8, line = b.lane % 8;
    return static_cast<u32>(stage - dev::shared()) +
           ((matrix / 2 * 8 + line) * 64 + (matrix % 2 ^ line) * 8) * static_cast<u32>(sizeof(W));
  }
  ARK_DEVICE u32 x_at(i32 piece, int octet, i32 count) const {
    const int matrix = b.lane / 8;
    const i32 row = first_row() + dev::min(octet + matrix / 2, count - 1) * 8 + b.lane % 8;
    const W* const line = row_of<W>(room_of(piece), row) + matrix % 2 * 8;
    return static_cast<u32>(reinterpret_cast<const u8*>(line) - dev::shared());
  }
  ARK_DEVICE static void load_weights(u32 (&to)[kColumnGroups][4], u32 from, int step) {
    ARK_UNROLL
    for (int g = 0; g < kColumnGroups; ++g)
      dev::ldmatrix_x4_trans(to[g], dev::shared() + (from ^ g * 16 * sizeof(W)) + step * 16 * 64 * sizeof(W));
  }

  // For sixteen rows of the weight a warp waits, while the other one of its quarter of the processor multiplies.
  ARK_DEVICE void multiply_piece(i32 piece, const u8* stage, i32 piece_rows, i32 count) {
    const u32 weights_from = weights_at(stage);
    u32 x_from[kWideOctets / 2];
    ARK_UNROLL
    for (int o = 0; o < kWideOctets; o += 2) x_from[o / 2] = x_at(piece, o, count);
    ARK_ROLLED
    for (int step = 0; step < piece_rows / 16; ++step) {
      u32 weights[kColumnGroups][4], x[kWideOctets / 2][4];
      load_weights(weights, weights_from, step);
      ARK_UNROLL
      for (int o = 0; o < kWideOctets; o += 2)
        if (o < count) dev::ldmatrix_x4(x[o / 2], dev::shared() + x_from[o / 2] + step * 16 * sizeof(W));
      ARK_UNROLL
      for (int o = 0; o < kWideOctets; ++o) {
        if (o >= count) break;
        const u32 of_rows[2] = {x[o / 2][o % 2 * 2], x[o / 2][o % 2 * 2 + 1]};
        ARK_UNROLL
        for (int g = 0; g < kColumnGroups; ++g) dev::mma_m16n8k16<W>(sums[o][g].of, weights[g], of_rows);
      }
    }
  }

  ARK_DEVICE void run() {
    const int stages = b.stages;
    RingCursor& cursor = b.cursor;
    ARK_UNROLL
    for (int o = 0; o < kWideOctets; ++o) {
      ARK_UNROLL
      for (int g = 0; g < kColumnGroups; ++g) sums[o][g] = {};
    }
    copy_x(0), copy_x(1);
    cursor.advance(half(), stages);
    ARK_ROLLED
    for (i32 piece = 0; piece < pieces; ++piece) {
      if (!ARK_BUG(wide_missing_x_wait)) dev::cp_async_wait<1>();
      if (!ARK_BUG(wide_missing_barrier)) consumers_sync();
      copy_x(piece + 2);
      if (half() < halves) {
        const bool is_there = acquire_stage_without_calls(b, cursor);
        const i32 piece_rows = first_row() < rows ? border(piece + 1) - border(piece) : 0;
        if (is_there && piece_rows > 0)
          multiply_piece(piece, stage_at(b, cursor), dev::uniform(piece_rows), dev::uniform(octets()));
        release_stage(b, cursor, kWideReaders);
      }
      cursor.advance(halves, stages);
    }
    cursor.rewind(half(), stages);
    consumers_sync();  // all are through with x
    put_sums();
    consumers_sync();
  }
  ARK_DEVICE void put_sums() const {
    if (half() >= halves) return;
    float* const to = wide_sums(b, i.stream, half(), rows);
    ARK_UNROLL
    for (int r = 0; r < 2 * kWideOctets; ++r) {
      const i32 row = first_row() + r / 2 * 8 + b.lane % 4 * 2 + r % 2;
      if ((r / 2 >= octets() && !ARK_BUG(wide_rows_of_others)) || row >= rows) continue;
      float* const line = to + row * 64 + b.lane / 4;
      ARK_UNROLL
      for (int g = 0; g < kColumnGroups; ++g)
        line[g * 16] = sums[r / 2][g].of[r % 2], line[g * 16 + 8] = sums[r / 2][g].of[r % 2 + 2];
    }
  }
};
// What follows is of the instance that many bytes behind dev::shared(), in a step of so many rows. Each a function of
// its own: the sums take most registers, and what is known of a tile is worked out again rather than kept beside them.

// All of a tile's pieces: its sums are in scratch.
template <class W>
ARK_APART void wide_pieces(const LoopParameters& p, u32 instance, i32 rows, i32 number) {
  Block b = open_block(p, 0, 0);
  take_ring(b);
  const Instance& i = *reinterpret_cast<const Instance*>(dev::shared() + instance);
  const StreamTiles tiles(i.stream, rows);
  WidePieces<W>(b, i, tiles, StreamTile(tiles, number)).run();
  leave_cursor(b);
}

template <class W>
struct WideOutput : ProductOutput<64, true, W> {
  using Output = ProductOutput<64, true, W>;
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

  // Of a tile that shares outputs. True: all groups of them are there. `handed`: groups of an output in a row.
  ARK_DEVICE bool share(bool is_last_tile, i32& handed) const {
    ARK_ROLLED
    for (int h = 0; h < halves.count; ++h)
      this->hand_in(tile.group, halves.panel_of(h), halves.is_gated ? h : 0, wide_sums(call.b, s, h, rows));
    if (s.arrivals == 0) return false;  // who reads the output adds them up
    ++handed;
    if (tile.group + 1 < tiles.groups && !is_last_tile) return false;  // the next one is of the same output
    const bool is_last = this->count_in(tile, handed);
    handed = 0;
    return is_last;
  }

  ARK_DEVICE void finish(bool is_last_tile, i32& handed) {
    const bool is_shared = tiles.groups > 1;
    const bool is_whole = !is_shared || share(is_last_tile, handed);
    ARK_ROLLED
    for (int h = halves.is_gated ? 1 : 0; is_whole && h < halves.count; ++h) {
      const i32 panel = halves.panel_of(h);
      tile_sums = is_shared ? wide_scratch(call.b) : wide_sums(call.b, s, h, rows);
      if (is_shared) this->gather(panel), this->load_terms(panel, call.b.thread * Output::kAtOnce);
      this->write(panel);
      if (this->is_used_here()) use(h);
      if (is_shared) consumers_sync();  // the other half's sums take the room of these
    }
    consumers_sync();  // the next tile's x takes the sums' room
  }
};
// What the sums come to. Returns `handed`.
template <class W>
ARK_APART i32 finish_wide(const LoopParameters& p, u32 turn, u32 instance, i32 number, bool is_last_tile,
                          i32 handed) {
  Block b = open_block(p, 0, turn);
  WideOutput<W>({b, *reinterpret_cast<const Instance*>(dev::shared() + instance), nullptr}, number)
      .finish(is_last_tile, handed);
  return handed;
}

// Tiles [first, last) of a product.
template <class W>
ARK_DEVICE void run_wide(const LoopParameters& p, u32 turn, u32 instance, i32 rows, i32 first, i32 last) {
  i32 handed = 0;
  ARK_ROLLED
  for (i32 t = first; t < last; ++t) {
    wide_pieces<W>(p, instance, rows, t);
    handed = finish_wide<W>(p, turn, instance, t, t + 1 == last, handed);
  }
}

}  // namespace ark::cuda
