#include "engine/cuda/product_tiles.h"

#include <algorithm>

#include "engine/cuda/dealing.h"

namespace ark::cuda {
namespace {

// What tiles that share outputs hand in, of the largest product, takes at most this.
constexpr uint64_t kPartialLimit = 32 << 20;
// Costs in nanoseconds. As traces of an H100 show them: a tile. As replays charge them (cost/product_work.cc): a stage
// of weights as they come from memory while all processors read, and in it what a row of x takes beside; handing in and
// taking up what tiles that share an output have, and in it a row of a tile. In steps of few rows, where joins take
// less, replays are shortest with the same number.
constexpr double kTileCost = 1700, kStageCost = 380, kStageRowCost = 7, kJoinCost = 4000, kJoinRowCost = 3;
constexpr double kTakenUpCost = 500;  // instead of a join's, where the norm behind adds the sums up
// Of wide tiles of kWideRows rows: a tile, with its outputs; a join, and in it a group's sums; of fewer rows less. A
// piece of two panels: their stages of weights from memory; or from L2, with x, at what it brings each processor while
// all read, in bytes a nanosecond (cost/rates.cc); or the products on tensor cores, whatever takes longest.
constexpr double kWideTileCost = 4000, kWideJoinCost = 4200, kWideGroupCost = 1600;
constexpr double kSharedRate = 42, kWideXCost = kWideRows * 64 * 2 / kSharedRate,
                 kWideWeightsCost = 2 * kStageBytes / kSharedRate, kWideMmaCost = 517, kWidePieceCost = 150;

int64_t up(int64_t n, int64_t by) { return (n + by - 1) / by; }
u8 bits_of(int32_t groups) { return static_cast<u8>(log2_of(static_cast<u32>(groups))); }

// Of tiles of `rows` rows of x, `groups` of which share an output.
double tiles_cost(const Stream& s, const Cutting& how, int64_t rows, int64_t blocks, int32_t groups) {
  const auto row_count = static_cast<double>(rows);
  const auto turns = static_cast<double>(up(how.panels * blocks * groups, how.processors));
  const double tile = kTileCost + how.weights * s.pieces / groups * (kStageCost + kStageRowCost * row_count);
  const double join = how.is_taken_up ? kTakenUpCost : kJoinCost;
  return turns * tile + (groups > 1 ? join + kJoinRowCost * how.weights * groups * row_count : 0);
}

// Into how many tiles the rows of one panel are split, so that all processors have work: a power of two from
// `least` to `most`, for up to `rows` rows of x in one block.
int32_t choose_groups(const Stream& s, const Cutting& how, int64_t rows, int32_t least, int32_t most) {
  int32_t best = least;
  double cheapest = 0;
  for (int32_t groups = least; groups <= most; groups *= 2) {
    if (groups > least && static_cast<uint64_t>(how.weights * groups * rows) * s.n * 4 > kPartialLimit) break;
    if (const double cost = tiles_cost(s, how, rows, 1, groups); groups == least || cost < cheapest)
      best = groups, cheapest = cost;
  }
  return best;
}

double narrow_cost(const Stream& s, const Cutting& how, int64_t rows) {
  const int64_t blocks = up(rows, how.tiles.row_block);
  const int bits = rows <= kFewRows ? s.few_bits : blocks == 1 ? s.some_bits : s.most_bits;
  return tiles_cost(s, how, std::min<int64_t>(rows, how.tiles.row_block), blocks, 1 << bits);
}

int64_t pairs(int64_t panels, const Cutting& how) { return how.weights > 1 ? panels : up(panels, 2); }
int32_t groups_of_wide(const Stream& s, const Cutting& how, int64_t rows) {
  return 1 << wide_group_bits(s, static_cast<i32>(pairs(s.panels, how) * up(rows, kWideRows)));
}
double wide_cost(const Stream& s, const Cutting& how, int64_t rows) {
  const int32_t groups = groups_of_wide(s, how, rows);
  const int64_t blocks = up(rows, kWideRows),
                turns = up(pairs(how.panels, how) * blocks * groups, how.processors);
  const auto block = static_cast<i32>(std::min<int64_t>(rows, kWideRows));
  const double part = wide_octets(block) * 8.0 * kWideReaders / kWideRows;
  const double from_memory = blocks == 1 ? 2 * kStageCost : 0;
  const double piece =
      kWidePieceCost + std::max({from_memory, kWideWeightsCost + part * kWideXCost, part * kWideMmaCost});
  const double join = how.is_taken_up ? kTakenUpCost : kWideJoinCost + part * kWideGroupCost * groups;
  const double shared = groups > 1 ? join : 0;
  return static_cast<double>(turns) * (part * kWideTileCost + s.pieces / groups * piece) + shared;
}

// Wide from as many rows on as save the most time, in parts of what narrow tiles take, over all numbers of rows.
void choose_wide(Stream& s, const Cutting& how) {
  s.wide_bits = bits_of(std::min({how.groups > 0 ? how.groups : kNode, s.pieces, kNode}));
  s.wide_tiles = how.groups > 0 ? INT32_MAX : static_cast<i32>(how.processors * s.panels / how.panels);
  constexpr int64_t kStep = kWarpRows;
  double lost = 0, least = 0;  // by wide tiles from so many rows on
  for (int64_t rows = up(how.rows, kStep) * kStep; rows >= kStep; rows -= kStep) {
    lost += wide_cost(s, how, rows) / narrow_cost(s, how, rows) - 1;
    if (lost < least)
      least = lost, s.wide_rows = static_cast<i32>(std::max<int64_t>(rows - kStep, kFewRows)) + 1;
  }
}

}  // namespace

bool cut(Stream& s, Cutting how) {
  const int32_t least = std::max(1, s.pieces >> (how.tiles.levels - 1));
  how.is_taken_up = how.is_taken_up && least <= kNode;
  const int32_t most =
      std::max(least, std::min(s.pieces, how.is_taken_up ? kNode : kMaxGroups / how.weights));
  const auto bits_for = [&](int64_t block) {
    const int64_t rows = std::min(how.rows, block);
    return bits_of(how.groups > 0 ? std::clamp(how.groups, least, most)
                                  : choose_groups(s, how, rows, least, most));
  };
  s.few_bits = bits_for(kFewRows);
  s.some_bits = bits_for(how.tiles.row_block);
  s.most_bits = how.groups > 0 ? s.some_bits : bits_of(least);
  const bool has_numbers = s.unit_rows == 1 && has_turned_rows(s.panel, s.unit_bytes / s.panel);
  if (how.takes_wide_tiles && has_numbers) choose_wide(s, how);
  return how.is_taken_up;
}

int64_t shared_rows(const Stream& s, const Cutting& how) {
  int64_t most = 0;
  const auto count = [&](int64_t rows, int32_t groups) {
    if (groups > 1) most = std::max(most, rows * groups);
  };
  count(std::min<int64_t>(how.rows, kFewRows), 1 << s.few_bits);
  count(std::min<int64_t>(how.rows, how.tiles.row_block), 1 << s.some_bits);
  count(how.rows, 1 << s.most_bits);
  for (int64_t block = 1; s.wide_rows != 0 && block <= up(how.rows, kWideRows); ++block) {
    const int64_t rows = std::min(how.rows, block * kWideRows);
    count(rows, groups_of_wide(s, how, rows));
  }
  return most;
}

}  // namespace ark::cuda
