// The work of matrix products: bodies/matmul.h.
#include <algorithm>

#include "base/index.h"
#include "engine/cuda/cost/work_parts.h"

namespace ark::cuda::cost {
namespace {

constexpr u32 kTerms = kEpilogueBias | kEpilogueResidual;  // of an epilogue, that are loaded

}  // namespace

ProductWork::ProductWork(const StepTables& t, const Instance& i)
    : tables_(t),
      i_(i),
      s_(i.stream),
      tiles_(s_, t.size(s_.m), t.machine().tiles.row_block),
      bits_(static_cast<u32>(i.sizes[0])) {
  const std::string& type = t.variant(i).type;
  const bool is_mixed = type.ends_with("kMixed>");
  is_fma_ = type.ends_with("kFma>") || (is_mixed && tiles_.rows <= 4);
  keeps_in_output_ = s_.second != 0 && type.ends_with("kFma>");
  is_shared_ = !is_fma_ && tiles_.rows > kFewRows;
  takes_codes_ = s_.unit_rows > 1;
  copies_x_ = type.ends_with("kParts>");
  count_ = is_shared_
               ? shared_turn(s_.longest_piece)
               : batch_of(tiles_.pieces, s_.longest_piece, std::min(t.machine().tiles.row_block, tiles_.rows),
                          s_.panel, s_.second != 0 && !keeps_in_output_, t.machine().tiles.scratch);
  for (i32 piece = 0; piece <= s_.pieces; ++piece) borders_.push_back(t.word(s_.borders + at(piece) * 4));
}

i32 ProductWork::rows_of(const StreamTile& tile) const {
  const i32 block = tables_.machine().tiles.row_block;
  return std::min(block, tiles_.rows - tile.block * block);
}

i32 ProductWork::tile_pieces() const { return tiles_.pieces * weights(); }
int32_t ProductWork::weights() const { return s_.second != 0 ? 2 : 1; }
i32 ProductWork::piece_of(const StreamTile& tile, i32 number) const {
  return tile.group * tiles_.pieces + number % tiles_.pieces;
}
int32_t ProductWork::pieces_at_once(i32 first) const {
  return std::min(count_, tiles_.pieces - first % tiles_.pieces);
}

int64_t ProductWork::piece_bytes(i32 piece) const {
  const i32 units = (border(piece + 1) - border(piece) + s_.unit_rows - 1) / s_.unit_rows;
  return int64_t{units} * s_.unit_bytes;
}

// The pieces' borders; beside them, by another warp, places of rows in pages.
Work ProductWork::prepare_work() const {
  const i32 borders = s_.pieces + 1, behind = borders - (kConsumers - 32);
  return loads(std::max(turns(borders), uses_tiles() ? 1 + turns(behind) : 0));
}

Work ProductWork::before_pieces(const StreamTile& tile, i32 first) const {
  const i32 piece = piece_of(tile, first), rows = rows_of(tile);
  // A tile of one batch has x from its first weight on.
  const bool is_there = first > 0 && !is_shared_ && count_ == tiles_.pieces;
  const i32 columns = is_there ? 0 : border(piece + pieces_at_once(first)) - border(piece);
  const int32_t quarters = is_there ? 0 : rows * std::max(1, (columns + 3) / 4);
  // Shared pieces: what a thread has ahead is all of a turn's x.
  const int32_t rounds = columns <= 0 ? 0 : is_shared_ ? 1 : up(quarters, 4 * kConsumers);
  // Copies of a turn are under way while the pieces of the one before are waited for.
  const bool is_ahead = is_shared_ && first % tiles_.pieces > 0;
  Work w = loads(copies_x_ ? !is_there && !is_ahead : rounds);
  w += barriers(1);
  w.cycles = 2 * kCall;
  if (copies_x_) {
    w.cycles += turns(quarters / 2) * kLoopTurn;
  } else {
    w.cycles += up(quarters, kConsumers) * (is_fma_ ? 60.0 : 250.0);
  }
  if (first == tiles_.pieces) w += hand_in_work(tile);  // or kept: the first weight's sums
  return w;
}

double ProductWork::piece_cycles(const StreamTile& tile, i32 piece) const {
  const i32 rows = rows_of(tile), k = border(piece + 1) - border(piece);
  const i32 column_groups = s_.panel / 16;
  if (is_fma_) {
    const i32 vector = takes_codes_ ? 8 : 16 / (s_.unit_bytes / s_.panel), lanes = s_.panel / vector;
    const double turn = takes_codes_ ? 220 : 60;  // of a lane's rows: codes take two at a time
    const i32 turns_of = up(k, 32 / lanes * (takes_codes_ ? 2 : 1));
    return 300 + up(rows, 4) * (turns_of * turn + vector * 4 * 12);
  }
  const i32 steps = up(k, 16);
  const double part = takes_codes_ ? 180 : 30;  // of sixteen columns
  if (!is_shared_) return 600 + steps * (60 + column_groups * (60 + part));
  const i32 row_parts = kConsumerWarps / column_groups, octets = up(up(rows, 8), row_parts);
  return 500 + steps * (30 + part + octets * 70) + octets * 200;
}

Work ProductWork::after_pieces(const StreamTile& tile, i32 first) const {
  const bool is_last = (first + pieces_at_once(first)) % tiles_.pieces == 0;
  const i32 rows = rows_of(tile);
  if (is_shared_) return barriers(is_last);
  Work w = barriers(1);
  w.cycles = turns(i64{rows} * s_.panel) * up(count_, kNode) * 130.0;
  return w;
}

Work ProductWork::write_work(const StreamTile& tile) const {
  const i32 each = turns(i64{rows_of(tile)} * s_.panel), rounds = up(each, 4);
  const bool has_bias = (bits_ & (weights() > 1 ? kTerms : u32{kEpilogueBias})) != 0;
  Work w = (bits_ & kTerms) != 0 ? loads(has_bias ? 0 : rounds, has_bias ? rounds : 0) : Work{};
  if (keeps_in_output_) w += loads(rounds);
  w.cycles = each * (30 + ((bits_ & kEpilogueActivations) != 0 ? kActivation : 0));
  return uses_tiles() ? w += use_work(tile) : w;
}

// bodies/append.h's AppendedTile: what comes from memory are angles, and places of rows that are not the first ones.
Work ProductWork::use_work(const StreamTile& tile) const {
  const bool rotates = (i_.sizes[2] & kTileRotated) != 0, appends = (i_.sizes[2] & kTileAppended) != 0;
  const i32 rows = rows_of(tile), dim = i_.sizes[4],
            columns = std::min(s_.panel, s_.n - tile.panel * s_.panel);
  const KvFormat format = tables_.appended_format(i_);
  const int32_t pack = 32 / format.bits;
  Work w;
  if (appends && format.has_scales()) {
    const int32_t heads = up(i64{rows} * (columns / dim), kConsumerWarps);
    w = loads(rotates ? heads : 0);
    w.cycles = heads * ((up(dim, 32) + up(dim, 32 * pack)) * kLoopTurn + kWarpSum + 3 * kCall);
  } else {
    const i64 packs = i64{rows} * columns / pack;
    w = at_once(4 / pack, packs);
    if (!rotates) w.loads = 0;
    w.cycles += turns(packs) * 4 * kCall;
  }
  w.cold = tile.block == 0;  // a processor's next tiles find the code
  w += loads(tiles_.blocks > 1);
  return w += barriers(1);
}

Work ProductWork::hand_in_work(const StreamTile& tile) const {
  return cycles(turns(i64{rows_of(tile)} * s_.panel) * 20.0);
}

Work ProductWork::join_work(const StreamTile&) const {
  Work w = loads(1);  // the atomic operation's result: no load to wait for beside it
  w += barriers(2);
  w.fences = w.atomics = 1;
  return w;
}

Work ProductWork::gather_work(const StreamTile& tile) const {
  const i32 size = std::min(tiles_.groups, kNode), each = tiles_.groups / size;
  const i32 at_once = each * weights() <= kMaxGroups / kNode ? weights() : 1, passes = weights() / at_once;
  const i64 elements = i64{rows_of(tile)} * s_.panel;
  const int32_t rounds = passes * turns(at_once * each * elements / 4);
  Work w = loads(rounds);
  w += barriers(2 * passes);
  w.cold = 1;
  w.cycles = rounds * (kCall + 100) + turns(elements) * 60.0;
  Work terms = write_work(tile);  // whose first terms came while the others were counted
  terms.loads -= (bits_ & kTerms) != 0, terms.far -= terms.far > 0;
  return w += terms;
}

Work ProductWork::total(Tiles own, int32_t gathered) const {
  Work all;
  for (i64 t = own.first; t < own.last; ++t) {
    const StreamTile tile(tiles_, static_cast<i32>(t));
    for (i32 first = 0; first < tile_pieces(); first += pieces_at_once(first)) {
      all += before_pieces(tile, first);
      all += after_pieces(tile, first);
    }
    if (tiles_.groups == 1) {
      all += write_work(tile);
      continue;
    }
    all += hand_in_work(tile);
    if (!joins()) continue;
    if (tile.group + 1 < tiles_.groups && t + 1 < own.last) continue;
    all += join_work(tile);
    if (gathered-- > 0) all += gather_work(tile);
  }
  return all;
}

}  // namespace ark::cuda::cost
