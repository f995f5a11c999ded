// Steps that tell (engine/cuda/lamport.h) of an image: of how many rows, and what they exchange so.
#include <algorithm>
#include <array>
#include <utility>

#include "base/index.h"
#include "engine/cuda/make_image.h"
#include "engine/cuda/planned_tiles.h"

namespace ark::cuda {

// Of as many rows as leave what they exchange room and pay, in at most two blocks of narrow tiles; where ranks add up
// parts, of no more than go by words.
void RankImage::choose_told(OnDevice device) {
  if (!leaves_scratch_) return;  // rows are not few where tokens are
  const bool is_asked_for = told_rows_ > 0;
  int32_t rows = std::min({is_asked_for ? told_rows_ : kMostToldRows, 2 * tiles_.row_block,
                           options_.limits.max_tokens, i32{kMostToldRows}});
  if (rank_parts_.pitch > 0) rows = std::min(rows, rank_parts_.rows);
  rows = std::max(rows, i32{kFewRows});
  for (bool is_done = false; !is_done; rows = std::max(i32{kFewRows}, rows / 2)) {
    LamportPlan plan = plan_told(rows, device);
    const bool fits = cuda::fits(*setup_.program, sends_, plan, needed_);
    is_done = rows == kFewRows || (fits && plan.floats * 4 <= kMostToldBytes && (is_asked_for || pays(plan)));
    if (is_done && fits) lamport_ = std::move(plan);
  }
}

// Whether the plan saves more than its largest steps take to clear what they exchange, and to look at rows of x, slice
// by slice of wide tiles (as replayed: cost/).
bool RankImage::pays(const LamportPlan& plan) const {
  constexpr double kSaved = 800, kLook = 250, kSlice = 15, kSliceRow = 0.625,
                   kClearedBytes = 5500;  // ns; a ns
  double saved = -4.0 * plan.rows * plan.pitch / kClearedBytes;
  for (const int32_t out : plan.out) saved += out == kNone ? 0 : kSaved;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    const Stream& own = streams_[s];
    if (are_taken_up(own)) saved += kSaved;
    const StreamTiles tiles = planned_tiles(own, plan.rows, tiles_);
    if (!tiles.wide || plan.x[at(stream_instances_[s])] == kNone) continue;
    const i64 turns = (tiles.grid + options_.processors - 1) / options_.processors,
              slices = std::min<i64>(turns, tiles.groups) * tiles.pieces << slice_bits(own.longest_piece);
    saved -= kLook + (kSlice + kSliceRow * plan.rows) * static_cast<double>(slices);
  }
  return saved > 0;
}

LamportPlan RankImage::plan_told(int32_t rows, OnDevice device) const {
  std::vector<SharedSums> sums;
  std::array<int32_t, kPartialRooms> last;  // in each room
  last.fill(kNone);
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    const Stream& own = streams_[s];
    const int32_t instance = stream_instances_[s];
    const bool is_taken_up = are_taken_up(own);
    // Steps that are cut alike: the most rows of such; tiles that share an output; and tiles, of all neighbours.
    struct Cut {
      int32_t rows, groups, tiles;
    };
    const auto cut_of = [&](int32_t most) {
      const StreamTiles tiles = planned_tiles(own, most, tiles_);
      return Cut{most, tiles.groups, static_cast<int32_t>(std::max(tiles.grid, tiles.lineup(own).all))};
    };
    const int32_t narrow = own.wide_from == 0 ? rows : std::min(rows, own.wide_from - 1),
                  in_one_block = std::min(narrow, tiles_.row_block);
    SharedSums shared{.instance = instance, .taker = is_taken_up ? takers_[at(instance)] : kNone};
    int32_t groups = 0;
    bool are_told = true;
    for (const Cut& cut : {cut_of(kFewRows), cut_of(in_one_block), cut_of(narrow), cut_of(rows)}) {
      // Who takes sums up is told of them in each such step; else a processor has a tile at most.
      are_told = are_told && (is_taken_up || cut.groups == 1 || cut.tiles <= options_.processors);
      if (are_told && (is_taken_up || cut.groups > 1))
        shared.rows = cut.rows, groups = std::max(groups, cut.groups);
    }
    shared.floats = int64_t{weights_of(own)} * groups * own.panels * own.panel * shared.rows;
    sums.push_back(shared);
    // Also where fewer rows' sums are told: there is one list of waits.
    if (!are_told) device.also[at(instance)] = std::exchange(last[own.partials], instance);
  }
  return plan_lamport(*setup_.program, *setup_.binding, appended(), rank_parts_, variants_.parts(number_),
                      sizes_of(rows), sums, std::move(device));
}

}  // namespace ark::cuda
