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
// Of a wide tile, by its rows: its outputs; a join, and in it a group's sums, by rows. A piece of two panels: their
// stages of weights from memory; or from L2, with x, at what it brings each processor while all read, in bytes a
// nanosecond (cost/rates.cc); or the products on tensor cores (cost/product_work.cc: 8 cycles each at 1.98 GHz, sixteen
// rows of the weight at a time, two warps to a quarter of the processor), whatever takes longest. Of exact ones: the
// operands of each half of the columns, or of all at once, and, by its rows, a piece's sums into the tree. What is not
// derived (kNarrowStageCost, kFewStageRowCost, kExactPieceCost) is fitted: replays of Llama-1B and GPT-2 in batches of
// 16 to 128 are short with it.
constexpr double kWideRowCost = 31, kWideJoinCost = 4200, kWideGroupRowCost = 12.5;
constexpr double kNarrowStageCost = 60, kFewStageRowCost = 5, kSharedRate = 42,
                 kWideWeightsCost = 2 * kStageBytes / kSharedRate, kWideMmaRowCost = 4 * 8 * 2 / 8.0 / 1.98,
                 kWidePieceCost = 150;
constexpr double kExactOperandsCost = 4 * 2 * 60 / 1.98, kExactPieceCost = 320, kExactRowCost = 5;

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

// Of two blocks of rows to a panel, in a step that one block would hold: one of them finds weights in L2 that the other
// one brings.
double halved_cost(const Stream& s, const Cutting& how, int64_t rows) {
  const auto turns = static_cast<double>(up(how.panels * 2 << s.most_bits, how.processors));
  const double stage = kStageCost / 2 + kFewStageRowCost * static_cast<double>(rows) / 2;
  return turns * (kTileCost + how.weights * s.pieces / (1 << s.most_bits) * stage);
}
// Whether these cost less than one block whose tiles share outputs.
bool takes_two_blocks(const Stream& s, const Cutting& how) {
  const int64_t rows = std::min<int64_t>(how.rows, how.tiles.row_block);
  return how.groups == 0 && !how.is_taken_up && s.most_bits < s.some_bits &&
         halved_cost(s, how, rows) < tiles_cost(s, how, rows, 1, 1 << s.some_bits);
}

double narrow_cost(const Stream& s, const Cutting& how, int64_t rows) {
  if (s.some_blocks > 1 && rows <= how.tiles.row_block) return halved_cost(s, how, rows);
  const int64_t blocks = up(rows, how.tiles.row_block);
  const int groups = 1 << (blocks == 1 ? s.some_bits : s.most_bits);
  const auto own = static_cast<double>(std::min<int64_t>(rows, how.tiles.row_block));
  const auto turns = static_cast<double>(up(how.panels * blocks * groups, how.processors));
  const double stage = blocks > 1 ? kNarrowStageCost + (kStageBytes + own * 64 * 4) / kSharedRate
                                  : kStageCost + own * (own > kWarpRows ? kStageRowCost : kFewStageRowCost);
  const double join = how.is_taken_up ? kTakenUpCost : kJoinCost + kJoinRowCost * how.weights * groups * own;
  return turns * (kTileCost + how.weights * s.pieces / groups * stage) + (groups > 1 ? join : 0);
}

int64_t pairs(int64_t panels, const Cutting& how) { return how.weights > 1 ? panels : up(panels, 2); }
int32_t groups_of_wide(const Stream& s, const Cutting& how, int64_t rows) {
  return 1 << wide_group_bits(s, static_cast<i32>(pairs(s.panels, how) * up(rows, how.wide_rows)));
}
double wide_cost(const Stream& s, const Cutting& how, int64_t rows) {
  const bool is_exact = how.wide_rows == kExactWideRows;
  const int32_t groups = groups_of_wide(s, how, rows);
  const int64_t blocks = up(rows, how.wide_rows),
                turns = up(pairs(how.panels, how) * blocks * groups, how.processors);
  // As they are copied and multiplied.
  const double own =
      wide_octets(static_cast<i32>(std::min<int64_t>(rows, how.wide_rows))) * 8.0 * kWideReaders;
  const int parts = is_exact ? 2 : 1;
  const double from_memory = blocks == 1 ? 2 * kStageCost : 0, x = own * 64 * 2 * parts / kSharedRate;
  double products = own * parts * kWideMmaRowCost;
  if (is_exact)
    products = std::max(products, (own > 8 * kWideReaders ? 1.0 : 0.5) * kExactOperandsCost + products / 2) +
               kExactPieceCost + own * kExactRowCost;
  const double piece = kWidePieceCost + std::max({from_memory, kWideWeightsCost + x, products});
  const double join = how.is_taken_up ? kTakenUpCost : kWideJoinCost + own * kWideGroupRowCost * groups;
  const double shared = groups > 1 ? join : 0;
  return static_cast<double>(turns) * (own * kWideRowCost + s.pieces / groups * piece) + shared;
}

// Wide from as many rows on as save the most time, in parts of what narrow tiles take, over all numbers of rows. Up to
// kWarpRows rows narrow tiles wait for memory alone, and exact ones want scratch that the ring has then.
void choose_wide(Stream& s, const Cutting& how) {
  s.wide_rows = static_cast<u8>(how.wide_rows);
  s.wide_bits = bits_of(std::min({how.groups > 0 ? how.groups : kNode, s.pieces, kNode}));
  s.wide_tiles = how.groups > 0 ? INT32_MAX : static_cast<i32>(how.processors * s.panels / how.panels);
  constexpr int64_t kStep = kWarpRows;
  double lost = 0, least = 0;  // by wide tiles from so many rows on
  const int64_t first = how.wide_rows == kExactWideRows ? 2 * kStep : kStep;
  for (int64_t rows = up(how.rows, kStep) * kStep; rows >= first; rows -= kStep) {
    lost += wide_cost(s, how, rows) / narrow_cost(s, how, rows) - 1;
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
  const auto bits_for = [&](int64_t block) {
    const int64_t rows = std::min(how.rows, block);
    return bits_of(how.groups > 0 ? std::clamp(how.groups, least, most)
                                  : choose_groups(s, how, rows, least, most));
  };
  s.few_bits = bits_for(kFewRows);
  s.some_bits = bits_for(how.tiles.row_block);
  s.most_bits = how.groups > 0 ? s.some_bits : bits_of(least);
  s.some_blocks = takes_two_blocks(s, how) ? 2 : 1;
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
    count(rows, groups_of_wide(s, how, rows));
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
