#include "engine/cuda/product_tiles.h"

#include <algorithm>
#include <initializer_list>

#include "engine/cuda/dealing.h"

namespace ark::cuda {
namespace {

// What tiles that share outputs hand in, of the largest product, takes at most this.
constexpr uint64_t kPartialLimit = 32 << 20;

// What a product takes, in nanoseconds: in all; of each turn in which all processors have a tile, and in it of a row of
// x; of each of a turn's pieces, and in it of a stage of weights as L2 gives it while all read, of what memory adds to
// it where no other block of rows has brought it, of a row that is multiplied, and of one of x that is read. Unless the
// norm behind takes outputs up: these; where tiles share them, and of each row.
struct Costs {
  double product, tile, tile_row, piece, stage, memory, multiplied_row, x_row, finish, join, join_row;
};
// Fitted to what replays (cost/) say of an H100 and the products of twelve decoders, of 0.1B to 70B parameters in 16
// bits, in steps of 1 to 512 rows that are cut in all ways, then to whole steps.
constexpr Costs kFew = {0, 1200, 0, 200, 0, 180, 0, 1.3, 0, 3000, 0};  // narrow tiles of up to kFewRows
constexpr Costs kNarrow = {2581, 287, 34, 20, 67, 60, 5.9, 3.8, 0, 3000, 0};
constexpr Costs kExactWide = {2900, 0, 13.5, 183, 82, 0, 8.5, 0, 2600, 0, 90};
constexpr Costs kRoundedWide = {3000, 0, 13.5, 163, 206, 0, 2.5, 0, 3000, 0, 70};

constexpr double kWithoutTensorCores = 6;  // a row takes so many times as long

int64_t up(int64_t n, int64_t by) { return (n + by - 1) / by; }
u8 bits_of(int64_t groups) { return static_cast<u8>(log2_of(static_cast<u32>(groups))); }

// A step's rows in blocks.
struct Blocks {
  Costs costs;
  int64_t count, rows;     // rows of a tile
  int64_t multiplied;      // of these, as tensor cores take them
  double memory;           // a block's part of what memory adds
  int64_t panels, pieces;  // that tiles count, of all neighbours; of a tile that shares no outputs
};

Blocks narrow(const Stream& s, const Cutting& how, int64_t rows, int64_t row_block) {
  const int64_t own = std::min(rows, row_block), blocks = up(rows, row_block);
  return {.costs = rows > kFewRows ? kNarrow : kFew,
          .count = blocks,
          .rows = own,
          .multiplied = own > kWarpRows ? 2 * kWarpRows : up(own, kFewRows) * kFewRows,
          .memory = blocks == 1                   ? 1
                    : rows <= how.tiles.row_block ? 0.5
                                                  : 0,
          .panels = how.panels,
          .pieces = int64_t{how.weights} * s.pieces};
}
Blocks wide(const Stream& s, const Cutting& how, int64_t rows) {
  const auto own = static_cast<i32>(std::min<int64_t>(rows, how.wide_rows));
  const int64_t padded = int64_t{wide_octets(own)} * 8 * kWideReaders;
  return {.costs = how.wide_rows == kExactWideRows ? kExactWide : kRoundedWide,
          .count = up(rows, how.wide_rows),
          .rows = padded,
          .multiplied = padded,
          .memory = 1,
          .panels = how.weights > 1 ? how.panels : up(how.panels, 2),
          .pieces = s.pieces};
}

double cost(const Stream& s, const Cutting& how, const Blocks& blocks, int64_t groups) {
  const Costs& c = blocks.costs;
  const int64_t tiles = blocks.panels * blocks.count * groups;
  const auto turns = static_cast<double>(up(tiles, how.processors)), rows = static_cast<double>(blocks.rows),
             pieces = static_cast<double>(blocks.pieces) / static_cast<double>(groups),
             stages = static_cast<double>(s.k) / s.unit_rows * s.unit_bytes / s.pieces / kStageBytes,
             steps_of_piece = static_cast<double>(up(s.longest_piece, 16)) / 4;
  const bool is_f32 = s.unit_rows == 1 && s.unit_bytes == 4 * s.panel;
  const double multiplied = is_f32 ? kWithoutTensorCores * rows : static_cast<double>(blocks.multiplied);
  // What is left to a processor of memory and L2: where few read up to three times its share.
  const double share = std::clamp(static_cast<double>(tiles) / how.processors, 1 / 3.0, 1.0);
  const double piece = c.piece + share * stages * (c.stage + blocks.memory * c.memory + c.x_row * rows) +
                       steps_of_piece * c.multiplied_row * multiplied;
  return c.product + turns * (c.tile + c.tile_row * rows + pieces * piece) +
         (how.is_taken_up ? 0 : c.finish + (groups > 1 ? c.join + c.join_row * rows : 0));
}

bool has_room(const Stream& s, const Cutting& how, int64_t rows, int64_t groups) {
  return static_cast<uint64_t>(how.weights * groups * rows) * static_cast<uint64_t>(s.n) * 4 <= kPartialLimit;
}

// Into how many tiles, a power of two from `least` to `most`, the rows of one panel are split in steps of so many rows,
// which narrow tiles have in one block.
int32_t narrow_groups(const Stream& s, const Cutting& how, std::initializer_list<int64_t> steps,
                      int32_t least, int32_t most) {
  int32_t best = least;
  double cheapest = 0;
  for (int32_t groups = least; groups <= most; groups *= 2) {
    if (groups > least && !has_room(s, how, std::max(steps), groups)) break;
    double all = 0;
    for (const int64_t rows : steps) all += cost(s, how, narrow(s, how, rows, rows), groups);
    if (groups == least || all < cheapest) best = groups, cheapest = all;
  }
  return best;
}

// Of wide tiles, by blocks.
u64 wide_groups(const Stream& s, const Cutting& how) {
  const int32_t most = std::min(s.pieces, kNode);
  u64 all = 0;
  for (i32 blocks = 1; blocks <= std::min<int64_t>(kGroupedBlocks, up(how.rows, how.wide_rows)); ++blocks) {
    const int64_t rows = int64_t{blocks} * how.wide_rows;
    int32_t best = how.groups > 0 ? std::min(how.groups, most) : 1;
    for (int32_t groups = 2; groups <= most && how.groups == 0 && has_room(s, how, rows, groups);
         groups *= 2) {
      if (cost(s, how, wide(s, how, rows), groups) < cost(s, how, wide(s, how, rows), best)) best = groups;
    }
    all |= u64{bits_of(best)} << 2 * (blocks - 1);
  }
  return all;
}
int32_t groups_of_wide(const Stream& s, int64_t rows) {
  return 1 << wide_group_bits(s, static_cast<i32>(up(rows, s.wide_rows)));
}

// Of steps of more than kFewRows, as they are cut if not into wide tiles.
double narrow_cost(const Stream& s, const Cutting& how, int64_t rows) {
  const i32 row_block = narrow_rows(s, static_cast<i32>(rows), how.tiles.row_block);
  return cost(s, how, narrow(s, how, rows, row_block), 1 << (rows <= row_block ? s.some_bits : s.most_bits));
}

// Wide from as many rows on as save the most time, in parts of what narrow tiles take, over all numbers of rows. Up to
// kWarpRows rows narrow tiles wait for memory alone, and exact ones want scratch that the ring has then.
void choose_wide(Stream& s, const Cutting& how) {
  s.wide_rows = static_cast<u8>(how.wide_rows);
  s.wide_groups = wide_groups(s, how);
  constexpr int64_t kStep = kWarpRows;
  double lost = 0, least = 0;  // by wide tiles from so many rows on
  const int64_t first = how.wide_rows == kExactWideRows ? 2 * kStep : kStep;
  for (int64_t rows = up(how.rows, kStep) * kStep; rows >= first; rows -= kStep) {
    lost += cost(s, how, wide(s, how, rows), groups_of_wide(s, rows)) / narrow_cost(s, how, rows) - 1;
    if (lost < least)
      least = lost, s.wide_from = static_cast<i32>(std::max<int64_t>(rows - kStep, kFewRows)) + 1;
  }
}

}  // namespace

bool cut(Stream& s, Cutting how) {
  const int32_t least = std::max(1, s.pieces >> (how.tiles.levels - 1));
  how.is_taken_up = how.is_taken_up && least <= kNode;
  const int32_t most =
      std::max(least, std::min(s.pieces, how.is_taken_up ? kNode : kMaxGroups / how.weights));
  const auto bits_for = [&](std::initializer_list<int64_t> steps) {
    return bits_of(how.groups > 0 ? std::clamp(how.groups, least, most)
                                  : narrow_groups(s, how, steps, least, most));
  };
  const int64_t block = std::min<int64_t>(how.rows, how.tiles.row_block),
                strip = std::min<int64_t>(how.rows, kWarpRows);
  s.few_bits = bits_for({std::min<int64_t>(how.rows, kFewRows)});
  s.some_bits = bits_for({strip, block});
  s.most_bits = how.groups > 0 ? s.some_bits : bits_of(least);
  s.some_blocks = 1;
  // Two blocks of rows: one of them finds in L2 what the other one brings.
  if (how.groups == 0 && !how.is_taken_up) {
    const double one = narrow_cost(s, how, strip) + narrow_cost(s, how, block);
    s.some_blocks = 2;
    if (one <= narrow_cost(s, how, strip) + narrow_cost(s, how, block)) s.some_blocks = 1;
  }
  if (how.rows > kFewRows && how.wide_rows > 0) choose_wide(s, how);
  return how.is_taken_up;
}

int64_t shared_rows(const Stream& s, const Cutting& how) {
  int64_t most = 0;
  const auto count = [&](int64_t rows, int32_t groups) {
    if (groups > 1) most = std::max(most, rows * groups);
  };
  count(std::min<int64_t>(how.rows, kFewRows), 1 << s.few_bits);
  if (s.some_blocks == 1) count(std::min<int64_t>(how.rows, how.tiles.row_block), 1 << s.some_bits);
  count(how.rows, 1 << s.most_bits);
  for (int64_t block = 1; s.wide_from != 0 && block <= up(how.rows, s.wide_rows); ++block) {
    const int64_t rows = std::min<int64_t>(how.rows, block * s.wide_rows);
    count(rows, groups_of_wide(s, rows));
  }
  return most;
}

int32_t leaving_rows(std::span<const Stream> products, int32_t stages) {
  // As replays are shorter: of Llama-1B's and 8B's widths in 4, 8 and 16 bits; rows of a piece, stages.
  constexpr int32_t kLongPiece = 96, kShortRing = 12;
  const auto is_long = [](const Stream& s) { return s.longest_piece > kLongPiece; };
  return stages >= kShortRing && std::ranges::any_of(products, is_long) ? kFewRows : kWarpRows;
}

}  // namespace ark::cuda
