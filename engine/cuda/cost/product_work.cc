// The work of matrix products: bodies/matmul.h.
#include <algorithm>
#include <numeric>

#include "base/index.h"
#include "engine/cuda/cost/work_parts.h"

namespace ark::cuda::cost {
namespace {

constexpr u32 kTerms = kEpilogueBias | kEpilogueResidual;  // of an epilogue, that are loaded

// Cycles until a wide piece's first operands are there; its copies of x; until those of a tile's first piece are there,
// which no count knows where later ones are on their way.
constexpr double kFirstOperands = 100, kWideCopies = 150, kFirstX = 400;
// A thread's copies of a piece of told rows looked at, where they have arrived; of sixteen rows it has one.
constexpr double kWideLook = 30, kWideLookOfRows = 15;
// Of an exact wide tile: a piece's sums of a warp added to those that wait in registers, or kept there, beside those of
// the other warp of its quarter; all warps' from or to shared memory, which brings 128 bytes a cycle, and around it.
constexpr double kOwnLevel = 2 * 2 * 16, kNearLevel = kWideLevelFloats * 4 / 128 + 2 * 60.0;
// Of a piece's sixteen rows, until operands are there: addresses, and a load from shared memory (33 cycles there). That
// other warps' products hide some of it is not counted.
constexpr double kStepOperands = 60;
// Of codes, as SASS has them: sixteen rows and columns made numbers, which integers' units do, half as many lanes a
// cycle as others. Of more than one eight of rows they are taken by parts, one after the other, for each of which x is
// loaded. Around a run of rows (Weights<Codes>::Run): until loads are there; instructions of a warp, and of each eight.
constexpr double kFourBits = 18, kEightBits = 27, kByParts = 1.3;
constexpr double kRunLoads = 60, kRunIssue = 60, kRunOctet = 40;

// Of a loop of all consumers over so many elements, those in which the last warp has none.
int32_t idle_rounds(i64 elements) { return turns(elements) - turns(elements - (kConsumers - 32)); }

}  // namespace

ProductWork::ProductWork(const StepTables& t, const Instance& i)
    : tables_(t),
      i_(i),
      s_(i.stream),
      tiles_(s_, t.size(s_.m), t.machine().tiles.row_block),
      bits_(static_cast<u32>(i.product.epilogue)) {
  const std::string& type = t.variant(i).type;
  is_fma_ = type.ends_with("kFma>");
  has_offsets_ = type.find("::kOffsets") != std::string::npos;
  has_four_bits_ = type.starts_with("MatMul<U4,") || type.starts_with("MatMul<Codes<4,");
  keeps_in_output_ = s_.second != 0 && type.ends_with("kFma>");
  is_apart_ = is_apart(tiles_.rows);
  is_told_ = t.tells() && i.lamport_x != 0;
  tells_sums_ = t.tells_sums(i);
  takes_codes_ = s_.unit_rows > 1;
  copies_x_ = type.ends_with("kParts>");
  const Batches batches(tiles_.pieces, s_.longest_piece,
                        {std::min(tiles_.row_block, tiles_.rows), s_.panel, !is_fma_, copies_x_,
                         s_.second != 0 && !keeps_in_output_, is_apart_},
                        scratch_of(tiles_.rows, t.leaving_rows(), t.machine().tiles.scratch));
  count_ = batches.count, copies_ahead_ = batches.ahead || tiles_.wide;
  wide_parts_ = s_.wide_rows == kExactWideRows ? 2 : 1;
  slices_ = 1 << slice_bits(s_.longest_piece);
  own_levels_ = wide_parts_ == 2 && t.machine().moves_registers() && !takes_codes_ ? 2 : 1;
  for (i32 piece = 0; piece <= s_.pieces; ++piece) borders_.push_back(t.word(s_.borders + at(piece) * 4));
}

i32 ProductWork::rows_of(const StreamTile& tile) const {
  return std::min(tiles_.row_block, tiles_.rows - tile.block * tiles_.row_block);
}

i64 ProductWork::fours_of(const StreamTile& tile) const {
  return i64{rows_of(tile)} * s_.panel / kSumsAtOnce;
}
int32_t ProductWork::halves_of(const StreamTile& tile) const { return WideHalves(s_, tile).count; }
i32 ProductWork::tile_pieces(const StreamTile& tile) const {
  return tiles_.pieces * (tiles_.wide ? halves_of(tile) : weights());
}
int32_t ProductWork::weights() const { return s_.second != 0 ? 2 : 1; }
i32 ProductWork::piece_of(const StreamTile& tile, i32 number) const {
  return tile.group * tiles_.pieces + (tiles_.wide ? number / halves_of(tile) : number % tiles_.pieces);
}
int32_t ProductWork::pieces_at_once(const StreamTile& tile, i32 first) const {
  if (tiles_.wide) return halves_of(tile);
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

Work ProductWork::before_pieces(const StreamTile& tile, i32 first, i64 number) const {
  if (tiles_.wide) {
    Work w = barriers(slices_);
    w.cycles = slices_ * kWideCopies;
    // Else a stage of weights is waited for behind it, by warps that have one.
    if (copies_one_ahead()) w.loads = halves_of(tile) == 1 ? slices_ : first == 0;
    if (first == 0 && !copies_one_ahead()) w.cycles += kFirstX;
    if (is_told_ && number < tiles_.groups) {
      w.loads += number == 0 && first == 0;
      w.cycles +=
          slices_ * (kWideLook + wide_octets(rows_of(tile)) * 8 * kWideReaders / 16 * kWideLookOfRows);
    }
    return w;
  }
  const i32 piece = piece_of(tile, first), rows = rows_of(tile);
  // A tile of one batch has x from its first weight on, unless sums took its place.
  const bool is_there = first > 0 && (copies_ahead_ || (!is_apart_ && count_ == tiles_.pieces));
  const i32 columns = border(piece + pieces_at_once(tile, first)) - border(piece);
  // Items of a thread: quarters, or eights of parts, of which a piece apart has as many as the longest one.
  const i32 of_item = copies_x_ ? 8 : 4,
            items = columns == 0 ? 0
                    : is_apart_  ? rows * pieces_at_once(tile, first) * up(s_.longest_piece, of_item)
                                 : rows * up(columns, of_item);
  const int32_t rounds =
      copies_x_ && (is_apart_ || !is_told_) ? 1 : up(items, (copies_x_ ? 2 : 4) * kConsumers);
  Work w = is_there ? Work{} : loads(rounds);
  w += barriers(1 + (is_apart_ && !copies_ahead_ && !(number == 0 && first == 0)));
  w.cycles = 2 * kCall;
  // What is copied ahead takes instructions here, too.
  if (!is_there || copies_ahead_) w.cycles += turns(items) * (copies_x_ ? kLoopTurn : is_fma_ ? 60.0 : 250.0);
  if (is_told_ && is_apart_ && copies_x_)
    w.cycles += turns(items) * kLoopTurn;  // looked at, where they have arrived
  if (!is_there && (is_apart_ || is_told_)) w.shared = x_bytes(tile, first);
  if (first == tiles_.pieces) w += hand_in_work(tile);  // or kept: the first weight's sums
  return w;
}

double ProductWork::piece_cycles(const StreamTile& tile, i32 piece) const {
  const i32 rows = rows_of(tile), k = border(piece + 1) - border(piece);
  const i32 column_groups = s_.panel / 16;
  if (tiles_.wide && takes_codes_) {
    return slices_ * kFirstOperands + codes_cycles(k, wide_octets(rows), wide_parts_, halves_of(tile));
  }
  if (tiles_.wide) {  // a warp of each half in each quarter of the processor
    // Operands of half the columns, then of the others, where registers hold no more sums of two eights.
    const int32_t waits = wide_octets(rows) > 1 && own_levels_ == 1 ? wide_parts_ : 1;
    const double products = wide_octets(rows) * column_groups * wide_parts_ * kMmaIssue;
    return waits * kFirstOperands +
           up(k, 16) * std::max(products * halves_of(tile), waits * kStepOperands + products);
  }
  if (is_fma_) {
    const i32 vector = takes_codes_ ? 8 : 16 / (s_.unit_bytes / s_.panel), lanes = s_.panel / vector;
    const double turn = takes_codes_ ? 220 : 60;  // of a lane's rows: codes take two at a time
    const i32 turns_of = up(k, 32 / lanes * (takes_codes_ ? 2 : 1));
    return 300 + up(rows, 4) * (turns_of * turn + vector * 4 * 12);
  }
  const i32 steps = up(k, 16), octets = up(std::min(rows, kWarpRows), 8);
  const double around = 600 + (octets - 1) * 100;  // until its stage and x are known there; sums into scratch
  // Both parts' products of two warps share a quarter's tensor cores; for operands a warp waits once for each eight.
  if (!takes_codes_) return around + steps * octets * (kStepOperands + column_groups * 2 * 2 * kMmaIssue);
  return around + kCall + codes_cycles(k, octets, 2, 2);
}

// So many rows of codes times so many eights of x in `parts`, by one of `warps` of a processor's quarter, which share
// its units. Offsets take one product more, of sums of x.
double ProductWork::codes_cycles(i32 k, i32 octets, int32_t parts, int32_t warps) const {
  const auto cuts = [&](i32 every) { return (k - 1) / every; };  // of so many rows each, inside the piece
  const i32 column_groups = s_.panel / 16, runs = k == 0 ? 0
                                                         : 1 + cuts(s_.unit_rows) + cuts(kLongestSlice) -
                                                               cuts(std::lcm(s_.unit_rows, kLongestSlice));
  const double products = octets * (column_groups + (has_offsets_ ? 1 : 0)) * parts * kMmaIssue,
               numbers =
                   column_groups * (has_four_bits_ ? kFourBits : kEightBits) * (octets > 1 ? kByParts : 1);
  return up(k, 16) * std::max({warps * products, warps * numbers, kStepOperands + numbers + products}) +
         runs * (kRunLoads + warps * (kRunIssue + octets * kRunOctet));
}

int64_t ProductWork::x_bytes(const StreamTile& tile, i32 first) const {
  const i32 piece = piece_of(tile, first);
  if (tiles_.wide) {
    const int64_t rows = wide_octets(rows_of(tile)) * 8 * kWideReaders;  // as they are copied
    const int64_t x = rows * (border(piece + 1) - border(piece)) * 2 * wide_parts_;
    return x + (tile.block > 0 ? halves_of(tile) * piece_bytes(piece) : 0);
  }
  return int64_t{rows_of(tile)} * (border(piece + pieces_at_once(tile, first)) - border(piece)) * 4;
}

int32_t ProductWork::pieces_in_hand(const StreamTile& tile) const {
  return tiles_.wide ? halves_of(tile) : kConsumerWarps / warps_of_piece(rows_of(tile), !is_fma_);
}

Work ProductWork::after_pieces(const StreamTile& tile, i32 first) const {
  if (tiles_.wide) return wide_parts_ > 1 ? fold_work(tile, first / halves_of(tile)) : Work{};
  Work w = barriers(1);
  // Threads load 16 bytes of each piece, of which shared memory brings a warp's in four cycles.
  const i64 items = fours_of(tile);
  const int32_t warps = std::min(kConsumerWarps, up(items, 32));
  w.cycles = turns(items) * up(count_, kNode) * (kLoopTurn + std::min(count_, kNode) * warps * 4.0);
  return w;
}

// A piece's sums into the tree.
Work ProductWork::fold_work(const StreamTile& tile, i32 piece) const {
  Work w;
  for (int level = 0;; ++level) {
    const bool takes = (piece >> level) % 2 != 0;
    const i32 octets = wide_octets(rows_of(tile));
    const double part = octets * 8.0 * kWideReaders / kExactWideRows;
    if (level < own_levels_) {
      w.cycles += kOwnLevel;
    } else if (!takes && piece + 1 == tiles_.pieces) {
      return w;
    } else if (level < own_levels_ + tables_.machine().tiles.wide_levels) {
      w.cycles += kNearLevel * part;
    } else {
      if (takes) w.loads += octets;  // by eights of rows, or by half the columns
      w.shared += static_cast<int64_t>(kWideLevelFloats * 4 * part);
    }
    if (!takes) return w;
  }
}

Work ProductWork::write_work(const StreamTile& tile) const {
  if (!tiles_.wide) return panel_work(tile, tile.panel);
  const WideHalves halves(s_, tile);
  Work w = barriers(3);  // until all are through with x, until sums are there, until these are used
  w.cycles = 2 * kLoopTurn;
  for (int h = halves.is_gated ? 1 : 0; h < halves.count; ++h) w += panel_work(tile, halves.panel_of(h));
  w.cold = std::min(w.cold, 1);  // the second half finds the code
  return w;
}

Work ProductWork::panel_work(const StreamTile& tile, i32 panel) const {
  const i32 rounds = turns(fours_of(tile));
  // Biases were asked for before the wait.
  Work w = (bits_ & kTerms) != 0 ? loads(rounds) : Work{};
  if (keeps_in_output_) w += loads(rounds);
  // Those of four elements at once take half as long again as one's.
  w.cycles = rounds * 1.5 * (30 + ((bits_ & kEpilogueActivations) != 0 ? kActivation : 0));
  // Parts of a sum over ranks (bodies/rank_part.h): to all, to who adds them up, or to where they are sent from.
  if (i_.parts_at != 0 || i_.share_parts_at != 0) {
    const int64_t ranks = tables_.program().ranks;
    w.cycles += rounds * kCall;
    if (tables_.tells_ranks(i_)) {
      w.cycles += rounds * static_cast<double>(ranks) * 30;
    } else if (tables_.shares(i_)) {
      w.cycles += rounds * (2 * kCall + 30.0);
      w.sent = fours_of(tile) * 16 * (ranks - tables_.machine().ranks) / ranks;
    }
  }
  if (!uses_tiles()) return w;
  const i32 rows = rows_of(tile), at_once = tables_.machine().tiles.row_block;
  const bool looks_up = is_behind();
  for (i32 first = 0; first < rows; first += at_once) {
    w += use_work(tile, std::min(at_once, rows - first), panel);
    if (tiles_.wide) w += barriers(1);
  }
  // Places are looked up by the last warp, which has taken part in fewer rounds than others.
  const i32 before = (bits_ & kTerms) != 0 ? idle_rounds(fours_of(tile)) : 0;
  if (looks_up) w += loads(std::max(0, up(rows, at_once) - before));
  return w;
}

// bodies/appended_tile.h: what comes from memory are angles, and places of rows that are not the first ones.
Work ProductWork::use_work(const StreamTile& tile, i32 rows, i32 panel) const {
  const bool rotates = (i_.product.tile_use & kTileRotated) != 0,
             appends = (i_.product.tile_use & kTileAppended) != 0;
  const i32 dim = i_.product.dim, columns = std::min(s_.panel, s_.n - panel * s_.panel);
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
  w.cold = tile.block == 0 || !is_behind();  // a processor's next tiles find the code
  return w += barriers(1);
}

Work ProductWork::hand_in_work(const StreamTile& tile) const {
  if (tiles_.wide) {
    Work w = barriers(3);
    w.cycles = halves_of(tile) * turns(fours_of(tile)) * 30.0;
    return w;
  }
  return cycles(turns(fours_of(tile)) * 30.0);
}

Work ProductWork::join_work() const {
  if (waits_for_sums()) return barriers(1);
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
  if (tiles_.wide) {  // a panel after the other
    const WideHalves halves(s_, tile);
    Work all;
    for (int h = halves.is_gated ? 1 : 0; h < halves.count; ++h, w.cold = 0) {
      Work panel = panel_work(tile, halves.panel_of(h));
      if (all.cold > 0) panel.cold = 0;  // the second half finds the code
      ((all += w) += panel) += barriers(1);
    }
    return all;
  }
  Work terms = write_work(tile);  // whose first terms came while the others were counted
  terms.loads -= (bits_ & kTerms) != 0;
  return w += terms;
}

Work ProductWork::total(Tiles own, int32_t gathered) const {
  Work all;
  for (i64 t = own.first; t < own.last; ++t) {
    const StreamTile tile(tiles_, static_cast<i32>(t));
    for (i32 first = 0; first < tile_pieces(tile); first += pieces_at_once(tile, first)) {
      all += before_pieces(tile, first, t - own.first);
      all += after_pieces(tile, first);
    }
    if (!hands_in()) {
      all += write_work(tile);
      continue;
    }
    all += hand_in_work(tile);
    if (!joins()) continue;
    const bool has_last = tile.group + 1 == tiles_.groups;
    if (!has_last && (waits_for_sums() || t + 1 < own.last)) continue;
    all += join_work();
    if (waits_for_sums() || gathered-- > 0) all += gather_work(tile);
  }
  return all;
}

}  // namespace ark::cuda::cost
