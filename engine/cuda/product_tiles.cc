#include "engine/cuda/product_tiles.h"

#include <algorithm>
#include <initializer_list>

#include "engine/cuda/dealing.h"

namespace ark::cuda {
namespace {

// What tiles that share outputs hand in, of the largest product, takes at most this.
constexpr uint64_t kPartialLimit = 32 << 20;

// What a product takes, in nanoseconds.
struct Costs {
  double product = 0;         // in all
  double tile = 0;            // of each turn in which all processors have a tile
  double tile_row = 0;        // of a row of x in it
  double piece = 0;           // of each piece of a turn
  double step = 0;            // of each 64 rows of the weight in it
  double stage = 0;           // of a stage of weights in it, as L2 gives it while all read
  double memory = 0;          // what memory adds to that where no other block of rows has brought it
  double multiplied_row = 0;  // of a row that is multiplied with a piece of 64
  double x_row = 0;           // of a row of x that is read for a stage
  // Unless the norm behind takes outputs up: of these; where tiles share them, and then of a row.
  double finish = 0, join = 0, join_row = 0;
};
// Fitted to what replays (cost/) say of an H100 and the products of twelve decoders, of 0.1B to 70B parameters in 16
// bits, in steps of 1 to 512 rows that are cut in all ways, then to whole steps.
constexpr Costs kFew = {.tile = 1200,
                        .piece = 200,
                        .memory = 180,
                        .x_row = 1.3,
                        .join = 3000},  // to kFewRows
    kNarrow = {.product = 2581,
               .tile = 287,
               .tile_row = 34,
               .piece = 20,
               .stage = 67,
               .memory = 60,
               .multiplied_row = 5.9,
               .x_row = 3.8,
               .join = 3000},
                kExactWide = {.product = 2900,
                              .tile_row = 13.5,
                              .piece = 183,
                              .stage = 82,
                              .multiplied_row = 8.5,
                              .finish = 2600,
                              .join_row = 90},
                kRoundedWide = {.product = 3000,
                                .tile_row = 13.5,
                                .piece = 163,
                                .stage = 206,
                                .multiplied_row = 2.5,
                                .finish = 3000,
                                .join_row = 70};

// Of codes: what a warp takes to make numbers of them is there whatever the rows, and pieces are as many as warps at
// least. Fitted to replays of Llama-1B's and 8B's widths in 4 and 8 bits, in blocks of 32 and 128.
constexpr Costs of_codes(Costs c, double piece, double step, double multiplied_row) {
  c.piece = piece, c.step = step, c.multiplied_row = multiplied_row;
  return c;
}
constexpr Costs kFewCodes =
                    {.tile = 1200, .piece = 50, .step = 80, .memory = 180, .x_row = 1.3, .join = 1200},
                kNarrowCodes = of_codes(kNarrow, 20, 0, 16),
                kExactWideCodes = of_codes(kExactWide, 270, 400, 9.4),
                kRoundedWideCodes = of_codes(kRoundedWide, 270, 480, 5.7);

constexpr double kWithoutTensorCores = 6;  // a row takes so many times as long

int64_t up(int64_t n, int64_t by) { return (n + by - 1) / by; }
bool are_codes(const Stream& s) { return s.unit_rows > 1; }
u8 bits_of(int64_t groups) { return static_cast<u8>(log2_of(static_cast<u32>(groups))); }

// A step's rows in blocks.
struct Blocks {
  Costs costs;
  int64_t all;             // rows
  int64_t count, rows;     // rows of a tile
  int64_t multiplied;      // of these, as tensor cores take them
  double memory;           // a block's part of what memory adds
  int64_t panels, pieces;  // that tiles count, of all neighbours; of a tile that shares no outputs
  int64_t at_once;         // pieces that a tile takes no longer for than for one
};

Blocks narrow(const Stream& s, const Cutting& how, int64_t rows, int64_t row_block) {
  const int64_t own = std::min(rows, row_block), blocks = up(rows, row_block);
  return {.costs = are_codes(s)      ? rows > kFewRows ? kNarrowCodes : kFewCodes
                   : rows > kFewRows ? kNarrow
                                     : kFew,
          .all = rows,
          .count = blocks,
          .rows = own,
          .multiplied = own > kWarpRows ? 2 * kWarpRows : up(own, kFewRows) * kFewRows,
          .memory = blocks == 1                   ? 1
                    : rows <= how.tiles.row_block ? 0.5
                                                  : 0,
          .panels = how.panels,
          .pieces = int64_t{how.weights} * s.pieces,
          .at_once = are_codes(s) ? kConsumerWarps / warps_of_piece(static_cast<i32>(own), true) : 1};
}
Blocks wide(const Stream& s, const Cutting& how, int64_t rows) {
  const auto own = static_cast<i32>(std::min<int64_t>(rows, how.wide_rows));
  const int64_t padded = int64_t{wide_octets(own)} * 8 * kWideReaders;
  const bool is_exact = how.wide_rows == kExactWideRows;
  return {.costs = are_codes(s) ? is_exact ? kExactWideCodes : kRoundedWideCodes
                   : is_exact   ? kExactWide
                                : kRoundedWide,
          .all = rows,
          .count = up(rows, how.wide_rows),
          .rows = padded,
          .multiplied = padded,
          .memory = 0,
          .panels = how.weights > 1 ? how.panels : up(how.panels, 2),
          .pieces = s.pieces,
          .at_once = 1};
}

double cost(const Stream& s, const Cutting& how, const Blocks& blocks, int64_t groups) {
  const Costs& c = blocks.costs;
  const int64_t tiles = blocks.panels * blocks.count * groups;
  const auto turns = static_cast<double>(up(tiles, how.processors)), rows = static_cast<double>(blocks.rows),
             pieces = static_cast<double>(std::max(blocks.pieces / groups, blocks.at_once)),
             stages = static_cast<double>(s.k) / s.unit_rows * s.unit_bytes / s.pieces / kStageBytes,
             steps_of_piece = static_cast<double>(up(s.longest_piece, 16)) / 4;
  const bool is_f32 = s.unit_rows == 1 && s.unit_bytes == 4 * s.panel;
  const double multiplied = is_f32 ? kWithoutTensorCores * rows : static_cast<double>(blocks.multiplied);
  // What is left to a processor of memory and L2: where few read up to three times its share.
  const double share = std::clamp(static_cast<double>(tiles) / how.processors, 1 / 3.0, 1.0);
  const double piece = c.piece + share * stages * (c.stage + blocks.memory * c.memory + c.x_row * rows) +
                       steps_of_piece * (c.step + c.multiplied_row * multiplied);
  return c.product + turns * (c.tile + c.tile_row * rows + pieces * piece) +
         (how.is_taken_up ? 0 : c.finish + (groups > 1 ? c.join + c.join_row * rows : 0));
}

// Into how many tiles, a power of two from `least` to `most`, what such tiles multiply is split so that steps take the
// least, if it is not asked for.
int32_t choose_groups(const Stream& s, const Cutting& how, std::initializer_list<Blocks> steps, int32_t least,
                      int32_t most) {
  if (how.groups > 0) return std::clamp(how.groups, least, most);
  const auto takes = [&](int32_t groups) {
    double all = 0;
    for (const Blocks& blocks : steps) all += cost(s, how, blocks, groups);
    return all;
  };
  const auto has_room = [&](int32_t groups) {
    return std::ranges::all_of(steps, [&](const Blocks& blocks) {
      return static_cast<uint64_t>(how.weights * groups * blocks.all) * static_cast<uint64_t>(s.n) * 4 <=
             kPartialLimit;
    });
  };
  int32_t best = least;
  for (int32_t groups = 2 * least; groups <= most && has_room(groups); groups *= 2) {
    if (takes(groups) < takes(best)) best = groups;
  }
  return best;
}

// Of wide tiles, by blocks.
u64 wide_groups(const Stream& s, const Cutting& how) {
  u64 all = 0;
  for (i32 blocks = 1; blocks <= std::min<int64_t>(kGroupedBlocks, up(how.rows, how.wide_rows)); ++blocks) {
    const Blocks own = wide(s, how, int64_t{blocks} * how.wide_rows);
    all |= u64{bits_of(choose_groups(s, how, {own}, 1, std::min(s.pieces, kNode)))} << 2 * (blocks - 1);
  }
  return all;
}
// Of several blocks that are not wide, likewise: Stream::more_groups, of two bits each.
constexpr int32_t kMostMore = 8;
u32 more_groups(const Stream& s, const Cutting& how, int32_t least, int32_t most) {
  u32 all = 0;
  const i64 row_block = how.tiles.row_block;
  for (i32 blocks = 2;
       how.groups == 0 && blocks <= std::min<int64_t>(kMoreGroupedBlocks, up(how.rows, row_block));
       ++blocks) {
    const Blocks own = narrow(s, how, blocks * row_block, row_block);
    all |= u32{bits_of(choose_groups(s, how, {own}, least, std::min(most, kMostMore * least)) / least)}
           << 2 * (blocks - 1);
  }
  return all;
}
int32_t groups_of_more(const Stream& s, const Cutting& how, int64_t rows) {
  return 1 << (s.most_bits + more_group_bits(s, static_cast<i32>(up(rows, how.tiles.row_block))));
}
int32_t groups_of_wide(const Stream& s, int64_t rows) {
  return 1 << wide_group_bits(s, static_cast<i32>(up(rows, s.wide_rows)));
}

// Of steps of more than kFewRows, as they are cut if not into wide tiles.
double narrow_cost(const Stream& s, const Cutting& how, int64_t rows) {
  const i32 row_block = narrow_rows(s, static_cast<i32>(rows), how.tiles.row_block);
  const int32_t groups = rows <= row_block             ? 1 << s.some_bits
                         : rows <= how.tiles.row_block ? 1 << s.most_bits
                                                       : groups_of_more(s, how, rows);
  return cost(s, how, narrow(s, how, rows, row_block), groups);
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
  const auto in_one_block = [&](int64_t most_rows) {
    const int64_t rows = std::min(how.rows, most_rows);
    return narrow(s, how, rows, rows);
  };
  const Blocks few = in_one_block(kFewRows), strip = in_one_block(kWarpRows),
               block = in_one_block(how.tiles.row_block);
  s.few_bits = bits_of(choose_groups(s, how, {few}, least, most));
  s.some_bits = bits_of(choose_groups(s, how, {strip, block}, least, most));
  s.most_bits = how.groups > 0 ? s.some_bits : bits_of(least);
  s.more_groups = more_groups(s, how, least, most);
  s.some_blocks = 1;
  // Two blocks of rows: one of them finds in L2 what the other one brings.
  if (how.groups == 0 && !how.is_taken_up) {
    const auto takes = [&] { return narrow_cost(s, how, strip.all) + narrow_cost(s, how, block.all); };
    const double in_one = takes();
    s.some_blocks = 2;
    if (in_one <= takes()) s.some_blocks = 1;
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
  for (int64_t block = 2; block <= std::min<int64_t>(kMoreGroupedBlocks, up(how.rows, how.tiles.row_block));
       ++block) {
    const int64_t rows = std::min<int64_t>(how.rows, block * how.tiles.row_block);
    count(rows, groups_of_more(s, how, rows));
  }
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
