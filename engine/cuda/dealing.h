// How an instance's tiles are dealt to the processors of a rank, and how those of a matrix product are cut. One place
// for the loop on the device and for the host, which replays it (engine/cuda/cost). On the device behind dma/device.h.
#pragma once

#include "engine/cuda/block_layout.h"

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
// Who calls a function. Where warps move registers the streaming warp has copies of its own of those that consumers
// call, too, but small leaves: one that both called would take the registers that consumers have.
enum class Side { kConsumers, kStreaming };

// Of a sum over ranks, by fours of elements: what tile `tile` of `rank`'s share has (engine/cuda/rank_shares.h). Shares
// begin with lines, tiles with sectors.
struct Fours {
  i32 first, last;
};
ARK_DEVICE i32 share_fours(i32 all, i32 ranks) {  // of a rank, at most
  return (divide(all + ranks - 1, ranks).quotient + 7) & ~7;
}
ARK_DEVICE Fours fours_of(i32 all, i32 ranks, i32 processors, i32 rank, i32 tile) {
  const i32 share = share_fours(all, ranks);
  const i32 each = (divide(share + processors - 1, processors).quotient + 1) & ~1;
  const auto place = [](i32 at, i32 end) { return at < end ? at : end; };
  const i32 begin = place(rank * share, all), end = place(begin + share, all);
  return {place(begin + tile * each, end), place(begin + (tile + 1) * each, end)};
}

// engine/program/program.h's tiles_of; processors are fewer than 2^11. Apart: divisions of 64 bits are much code. The
// streaming warp makes none: products have fewer than 2^31 tiles.
template <Side kSide>
ARK_APART Tiles tiles_of(i64 grid, int processor, int processors) {
  const auto border = [&](int p) {
    const u32 all = static_cast<u32>(grid), of = static_cast<u32>(processors), place = static_cast<u32>(p);
    if (kSide == Side::kStreaming) return static_cast<i64>(all / of) * p + all % of * place / of;
    return grid < 1 << 20 ? static_cast<i64>(all * place / of) : grid * p / processors;
  };
  return {border(processor), border(processor + 1)};
}

// Who has tile `tile` of fewer than 2^20.
ARK_APART int taker_of(u32 grid, u32 tile, int processors) {
  return static_cast<int>(((tile + 1) * static_cast<u32>(processors) + grid - 1) / grid) - 1;
}

// A processor's place among those that share an instance's tiles, the first of which is number `base`.
ARK_DEVICE int place_from(int processor, i32 base, int processors) {
  const int place = processor - base;
  return place < 0 ? place + processors : place;
}

// Tiles of an instance; where those of several instances are dealt as one row: how many lie before them, and in all.
struct Lineup {
  i64 grid, before, all;
  ARK_DEVICE Lineup(i64 tiles, i64 tiles_before = 0, i64 all_tiles = 0)
      : grid(tiles), before(tiles_before), all(all_tiles) {}
};

// A processor's tiles of an instance, and what it adds to the instance's counter; 0: it takes no part. Those without
// tiles neither wait nor signal, and who has the first tile raises the counter for them.
struct Share {
  Tiles tiles;
  i32 raises;
};
// One tile each from processor `base` on, where the row begins; or ranges of them, from the one behind processor 0 on,
// which opens and closes steps; or what ranges of the row have of the instance.
template <Side kSide = Side::kConsumers>
ARK_APART Share dealt(Lineup line, int processor, i32 base, int processors) {
  if (line.grid <= processors && line.all <= processors) {
    const int place =
        place_from(place_from(processor, static_cast<i32>(line.before), processors), base, processors);
    const i64 grid = line.grid, own = place, next = own + 1;
    const int taking = grid < 1 ? 1 : static_cast<int>(grid);
    return {{own < grid ? own : grid, next < grid ? next : grid},
            place == 0 ? 1 + processors - taking : place < taking};
  }
  if (line.all == 0) return {tiles_of<kSide>(line.grid, place_from(processor, 1, processors), processors), 1};
  const Tiles of_row = tiles_of<kSide>(line.all, processor, processors);
  const auto within = [&](i64 tile) {
    const i64 own = tile - line.before;
    return own < 0 ? 0 : own < line.grid ? own : line.grid;
  };
  const Tiles own = {within(of_row.first), within(of_row.last)};
  if (own.first >= own.last) return {own, 0};
  if (own.first > 0) return {own, 1};
  const int last =
      taker_of(static_cast<u32>(line.all), static_cast<u32>(line.before + line.grid - 1), processors);
  return {own, processors - (last - processor)};
}

// ---- tiles of a matrix product

// Rows of the wide tiles that a loop has code for; 0: it has none. Hosts ask the stream.
#if defined(ARK_WIDE_ROWS)
inline constexpr int kWideRows = ARK_WIDE_ROWS;
#else
inline constexpr int kWideRows = 0;
#endif
#if defined(__CUDACC__)
inline constexpr bool kHasWideTiles = kWideRows != 0;
#else
inline constexpr bool kHasWideTiles = true;
#endif
ARK_DEVICE bool is_wide(const Stream& s, i32 m) {
  return kHasWideTiles && s.wide_from != 0 && m >= s.wide_from;
}

// Groups of wide tiles, by blocks of rows: 2^this. Those of more blocks than there is room for share no outputs.
inline constexpr i32 kGroupedBlocks = 32;
ARK_DEVICE int wide_group_bits(const Stream& s, i32 blocks) {
  return blocks > kGroupedBlocks ? 0 : static_cast<int>(s.wide_groups >> 2 * (blocks - 1)) & 3;
}

// Of others of several blocks, each of as many rows as a tile may have, likewise.
inline constexpr i32 kMoreGroupedBlocks = 16;
ARK_DEVICE int more_group_bits(const Stream& s, i32 blocks) {
  return blocks > kMoreGroupedBlocks ? 0 : static_cast<int>(s.more_groups >> 2 * (blocks - 1)) & 3;
}

// Of a wide tile of so many rows: eights of them that each of a stage's readers takes.
ARK_BOTH constexpr i32 wide_octets(i32 rows) { return (rows + 8 * kWideReaders - 1) / (8 * kWideReaders); }
// A room of a wide tile has x of so many of a weight's rows at most: a slice of a piece. Pieces of numbers are one
// slice; of codes 2^slice_bits(), of which one is full where there are columns behind it.
inline constexpr i32 kLongestSlice = kStageBytes / (64 * 2);
static_assert(kPieceRows <= 2 * kLongestSlice);
ARK_BOTH constexpr int slice_bits(i32 longest_piece) { return longest_piece > kLongestSlice; }

// Rows of a tile that is not wide, at most, in a step of `m` rows: `all`; or fewer, of two blocks where one would hold
// the step (Stream::some_blocks).
ARK_DEVICE i32 narrow_rows(const Stream& s, i32 m, i32 all = kRowBlock) {
  if (s.some_blocks == 1 || m > all) return all;
  return m > kWarpRows ? kWarpRows : kFewRows;
}

// How they lie in a step of `m` rows.
struct StreamTiles {
  bool wide;
  i32 rows, row_block;
  i32 panels;  // that tiles count: of wide ones a pair
  i32 blocks;
  int group_bits;
  i32 groups;  // 2^group_bits
  i32 pieces;  // of a tile
  i64 grid;
  ARK_DEVICE StreamTiles(const Stream& s, i32 m, i32 all = kRowBlock)
      : wide(is_wide(s, m)),
        rows(m),
        row_block(wide ? s.wide_rows : narrow_rows(s, m, all)),
        panels(wide && s.second == 0 ? (s.panels + 1) / 2 : s.panels),
        blocks((m + row_block - 1) >> log2_of(static_cast<u32>(row_block))),  // a power of two
        group_bits(wide            ? wide_group_bits(s, blocks)
                   : m <= kFewRows ? int{s.few_bits}
                   : blocks == 1   ? s.some_bits
                   : m <= all      ? s.most_bits
                                   : s.most_bits + more_group_bits(s, blocks)),
        groups(1 << group_bits),
        pieces(s.pieces >> group_bits),
        grid(static_cast<i64>(panels) * blocks << group_bits) {}
  // With neighbours.
  ARK_DEVICE Lineup lineup(const Stream& s) const {
    const i32 each = blocks << group_bits, all = (wide ? s.wide_beside : s.beside) * each;
    if (all >= 1 << 20) return grid;
    return {grid, (wide ? s.wide_before : s.before) * each, all};
  }
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
// A wide tile's weights: each of its pieces is a stage of the first, then one of the second if there is one.
struct WideHalves {
  bool is_gated;
  i32 count, panel;  // of the first
  ARK_DEVICE WideHalves(const Stream& s, const StreamTile& tile)
      : is_gated(s.second != 0),
        count(is_gated || 2 * tile.panel + 1 < s.panels ? 2 : 1),
        panel(is_gated ? tile.panel : 2 * tile.panel) {}
  ARK_DEVICE i32 panel_of(int half) const { return is_gated ? panel : panel + half; }
};

// Warps take whole pieces, a batch of them at once: as many, a power of two, as there is room for in a block's scratch
// beside the tree's sums, and those of the first one of two products. Up to kFewRows rows the batch's x lies together,
// its pieces' sums behind it; beyond, each piece has a room for its rows of x, whose place its sums take. On tensor
// cores a warp takes kWarpRows rows of x, so that two share a piece.
inline constexpr u32 kPlaceBytes = kLargeTiles.row_block * 16;  // of rows in pages: bodies/finished_tile.h
// Of pieces, and of rows in pages; at the start of the scratch.
inline constexpr u32 kBorderBytes = (kMaxPieces + 4) * 4 + kPlaceBytes;
// In a step of so many rows, of which a tile may have fewer.
ARK_BOTH constexpr bool is_apart(i32 rows) { return rows > kFewRows; }
// Floats from row to row, which puts rows into different banks: of sums, of a batch's x, of a piece's x and sums.
ARK_BOTH constexpr i32 sum_pitch(i32 panel) { return panel + 4; }
ARK_BOTH constexpr i32 by_eights(i32 columns) { return (columns + 7) / 8 * 8; }
ARK_BOTH constexpr i32 batch_pitch(i32 count, i32 longest_piece) {
  return by_eights(count * longest_piece) + 4;
}
ARK_BOTH constexpr i32 piece_pitch(i32 longest_piece, i32 panel) {
  return sum_pitch(by_eights(longest_piece) > panel ? by_eights(longest_piece) : panel);
}
// Elements of a row that a thread adds up, hands in and writes at once; of a tile it has every kConsumers-th such run.
inline constexpr int kSumsAtOnce = 4;
// Of the tree, of sums that wait for their right neighbours; the first one's are where the tile's sums will be.
ARK_DEVICE i32 waiting_levels(i32 pieces, i32 count) {
  const i32 levels =
      log2_of(static_cast<u32>(pieces)) - log2_of(static_cast<u32>(count < kNode ? count : kNode));
  return levels > 1 ? levels - 1 : 0;
}
ARK_BOTH constexpr i32 warps_of_piece(i32 rows, bool is_mma) { return is_mma && rows > kWarpRows ? 2 : 1; }
// Rows of x; whether tensor cores multiply them, and whether they can be copied while the batch before is in use, into
// rooms of their own; whether the sums of a first product are kept; is_apart() of the step.
struct BatchOf {
  i32 rows, panel;
  bool is_mma, copies, keeps, is_apart;
};
struct Batches {
  i32 count;  // pieces
  bool ahead;
  ARK_DEVICE Batches(i32 pieces, i32 longest_piece, const BatchOf& of, u32 scratch) {
    const i32 room = static_cast<i32>(scratch - kBorderBytes) / 4 / of.rows - (1 + of.keeps) * of.panel;
    const i32 warps = warps_of_piece(of.rows, of.is_mma);
    ahead = of.copies && of.is_apart;
    for (;; ahead = false) {
      for (count = pieces; count > 1; count /= 2) {
        const i32 own = of.is_apart ? (ahead ? 2 : 1) * count * piece_pitch(longest_piece, of.panel)
                                    : batch_pitch(count, longest_piece) + count * sum_pitch(of.panel);
        if (own + waiting_levels(pieces, count) * of.panel <= room) break;
      }
      // Rather all warps at work than copies ahead.
      if (!ahead || count == pieces || count * warps >= kConsumerWarps) return;
    }
  }
};

// Warps that take a tile of kRotaryAppend together, of a block that has `tiles` of them: a power of two.
ARK_BOTH constexpr int append_warps(i64 tiles, bool has_scales) {
  int warps = has_scales ? 1 : kConsumerWarps;
  while (warps > 1 && tiles * warps > kConsumerWarps) warps /= 2;
  return warps;
}

// ---- tiles of attention

// Tile: KV head, item, split. Items alternate from both ends, since a prompt's last ones have the most keys.
struct AttentionTile {
  i32 item, kv, split;
  ARK_DEVICE AttentionTile(i32 tile, i32 items, i32 splits) {
    const Division by_split = splits == 1 ? Division{tile, 0} : divide(tile, splits),
                   by_item = divide(by_split.quotient, items);
    const i32 number = by_item.rest;
    split = by_split.rest, kv = by_item.quotient;
    item = number % 2 == 0 ? number / 2 : items - 1 - number / 2;
  }
};
// Whether tensor cores multiply keys and values, of heads of so many elements: where 16 bytes are eight of them.
ARK_BOTH constexpr bool attends_on_tensor_cores(const KvFormat& format, i32 key, i32 value) {
  return format.bits == 16 && key % 8 == 0 && value % 8 == 0;
}
// Rows (token and query head) that tensor cores multiply at once.
inline constexpr i32 kStripRows = 16;
// Of a warp's 32 keys, sixteens whose values it loads at once: two, where it has taken others' registers and heads
// leave it enough of them.
ARK_BOTH constexpr i32 values_at_once(bool moves_registers, i32 key, i32 value) {
  return moves_registers && key <= 64 && value <= 64 ? 2 : 1;
}
// Tiles of few rows that a block takes at once, each with a slot, an equal share of a strip's rows: of four rows or
// fewer by fours, of eight or fewer by twos. `fours`, `eights`: how many such tiles follow each other.
ARK_BOTH constexpr i32 bundle_tiles(i32 fours, i32 eights) {
  const i32 two = eights < 2 ? eights : 2, most = fours > two ? fours : two;
  return most > 1 ? most : 1;
}
ARK_BOTH constexpr i32 bundle_slot(i32 tiles, i32 fours) {
  return tiles == 1 ? kStripRows : tiles <= fours ? 4 : 8;
}
// What each row of each warp's keys comes to waits in a room of scratch, until all are merged: floats in front of the
// rooms, and rooms for all elements of a value, or of a part of it, in so much scratch.
inline constexpr i32 kMostRooms = kConsumerWarps * kStripRows, kValueChunk = 64, kBundleFloats = 8;
ARK_BOTH constexpr i32 before_rooms(i32 key) {
  return kStripRows * ((key + 31) / 32 * 32 + 8) + kConsumerWarps * (kBundleFloats + 32) + 2 * kMostRooms;
}
ARK_BOTH constexpr i32 value_chunks(i32 value) {
  return ((value < 128 ? value : 128) + kValueChunk - 1) / kValueChunk;
}
ARK_BOTH constexpr i32 attention_rooms(i32 key, i32 value, i32 bytes) {
  const i32 rooms = (bytes / 4 - before_rooms(key)) / (value_chunks(value) * kValueChunk);
  return rooms < kMostRooms ? rooms : kMostRooms;
}
// Rows of a tile that have rooms, whatever its keys: a power of two.
ARK_BOTH constexpr i32 fewest_rows(i32 rooms) {
  i32 rows = kStripRows;
  while (rows * kConsumerWarps > rooms) rows /= 2;
  return rows;
}
// Rows that are taken by strips at once, one strip a warp, with keys in shared memory (bodies/attention_strips.h).
inline constexpr i32 kRowsOfStrips = kConsumerWarps * kStripRows;
// A value's elements are taken by so many parts, each with all of the scores anew: registers are few.
ARK_BOTH constexpr i32 strip_parts(i32 value) { return value > 80 ? 2 : 1; }
// Whether tiles of many rows are, in steps that leave all scratch to bodies: where a warp has registers for two states
// of a strip.
ARK_BOTH constexpr bool attends_by_strips(bool moves_registers, const KvFormat& format, i32 key, i32 value) {
  return moves_registers && attends_on_tensor_cores(format, key, value) && key <= 128 && value <= 128 &&
         value % (16 * strip_parts(value)) == 0;
}
// Fewer are through sooner where each warp has keys of its own.
ARK_BOTH constexpr bool has_many_rows(i32 rows) { return rows >= 48; }
// Query tokens of an item, at most, where a KV head has so many query heads: as many as are taken by strips at once.
ARK_BOTH constexpr i32 strip_tokens(i32 group) {
  const i32 tokens = kRowsOfStrips / (group < 1 ? 1 : group);
  return tokens < kItemTokens ? kItemTokens : tokens;
}
// Of a step of so many tokens, whose longest sequence has so many: `most`, but kItemTokens where items of `most` tokens
// would leave more than half of the processors idle; and `strip`, as many as are a strip's rows, in a step of few
// tokens whose tiles are no more than processors then.
ARK_BOTH constexpr i32 item_tokens_of(i32 most, i32 strip, i32 kv_heads, i32 step_tokens, i32 longest,
                                      i32 processors) {
  const i64 tiles_of_item = i64{kv_heads} * most_splits(longest);
  if ((step_tokens + most - 1) / most * tiles_of_item * 2 > processors) return most;
  const bool is_few =
      step_tokens <= kItemTokens && (step_tokens + strip - 1) / strip * tiles_of_item <= processors;
  return is_few ? strip : kItemTokens;
}
// The splits that hold keys of an item's queries; the tiles of others have nothing to do.
struct ItemSplits {
  i32 first = 0, last = 0;
  ARK_DEVICE ItemSplits(const AttentionItem& item, i32 window, i32 splits) {
    if (splits == 1) return;
    const int bits = log2_of(static_cast<u32>(split_keys(item.position)));
    if (window > 0 && item.position >= window) first = (item.position - window + 1) >> bits;
    last = (item.position + item.count - 1) >> bits;
  }
  ARK_DEVICE i32 count() const { return last - first + 1; }
  ARK_DEVICE bool has(i32 split) const { return first <= split && split <= last; }
};

}  // namespace ark::cuda
