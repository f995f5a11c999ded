// What a processor does of an instance: counts, which the emulator counts too by running the code itself
// (tests/emulator/cost_test.cc), and what times follow from. One function a body of engine/cuda/bodies; tiles, groups
// and pieces are dealt by engine/cuda/dealing.h, here as there.
#pragma once

#include <cstdint>

#include "engine/cuda/cost/step_tables.h"
#include "engine/cuda/dealing.h"

namespace ark::cuda::cost {

// Of a block's consumers, from the start of an instance to the start of the next one. Word: one that threads of
// several blocks talk through, in the GPU's memory.
struct Counts {
  // Rounds of loads from global memory that wait for each other, along the longest chain of the block: loads that are
  // under way together are one round. A load is waited for where its value decides an address, a store or a branch, or
  // at the end of the basic block that computes with it; barriers hand the longest on. A wait for all copies of a
  // thread (cp.async) is a round where no other wait has passed since they began; the ring of weights is none. Of a
  // wait's polls the last one counts.
  int32_t loads = 0;
  int32_t fences = 0;   // acquires and releases of words, and fences; an atomic operation that is both is one
  int32_t atomics = 0;  // atomic operations on words, with or without a result
  int32_t barriers = 0;  // of the block
  bool operator==(const Counts&) const = default;
};

struct Work : Counts {
  int32_t far = 0;     // of the loads: those that L2 will not have, as the weights of a step go through it
  int32_t cold = 0;    // pieces of code that seldom run
  double cycles = 0;   // of instructions that wait for each other, but for loads, barriers and atomics
  int64_t bytes = 0;   // from memory
  int64_t shared = 0;  // of the loads: from L2, by many processors at once
  // Cycles of instructions beside which `streamed` bytes come from L2, with `covered` of the near rounds of loads: what
  // takes longer, they or the bytes.
  double beside = 0;
  int64_t streamed = 0;
  int64_t sent = 0;  // bytes to other GPUs
  int32_t covered = 0;
  Work& operator+=(const Work& other);
  Work times(int64_t n) const;
};

// Tiles of an instance; a processor's share.
Lineup grid_of(const StepTables& tables, const Instance& i);
Share share_of(const StepTables& tables, const Instance& i, const Lineup& line, int32_t processor);

// Before the wait.
Work prepare_work(const StepTables& tables, const Instance& i, Tiles tiles);
// All of it. `last`: of a product whose tiles share outputs: of how many of these the processor's were the last; where
// inboxes are read: whether it was through with them last.
Work instance_work(const StepTables& tables, const Instance& i, int32_t processor, int32_t last);
// How often somebody is the last, in all.
int32_t shared_outputs(const StepTables& tables, const Instance& i);

// Of a body other than a matrix product.
Work body_work(const StepTables& tables, const Instance& i, Tiles tiles);

// Of a sum whose share a rank adds up: until the sums are stored; all that is behind the other ranks'.
Work share_work(const StepTables& tables, const Instance& i, Tiles tiles);
Work gathered_work(const StepTables& tables, const Instance& i, Tiles tiles);

// A matrix product on this processor: what it does of each of its tiles.
class ProductWork {
 public:
  ProductWork(const StepTables& tables, const Instance& i);

  // Whether tiles leave their sums to others: hands_in() of bodies/product_output.h.
  bool hands_in() const { return tiles_.groups > 1 || (tells_sums_ && s_.arrivals == 0); }
  // Whether one of the tiles that share an output adds up: the last one there, or, where sums are told, the one with
  // the last group, which waits for the others.
  bool joins() const { return tiles_.groups > 1 && s_.arrivals != 0; }
  bool waits_for_sums() const { return tells_sums_; }
  const StreamTiles& tiles() const { return tiles_; }
  // Of all products that run side by side; 0: it runs alone.
  i64 tiles_beside() const {
    return (tiles_.wide ? s_.wide_beside : s_.beside) * (i64{tiles_.blocks} << tiles_.group_bits);
  }
  // Pieces that a tile takes, numbered from 0: of a gated product those of the first weight, then those of the second.
  // Wide: two to a piece of the weights, one of each half.
  i32 tile_pieces(const StreamTile& tile) const;
  i32 piece_of(const StreamTile& tile, i32 number) const;           // of the weight
  int32_t pieces_at_once(const StreamTile& tile, i32 first) const;  // whose x is there: a batch, or a turn
  i32 border(i32 piece) const { return borders_[static_cast<std::size_t>(piece)]; }
  i32 rows_of(const StreamTile& tile) const;   // of x
  i64 fours_of(const StreamTile& tile) const;  // elements of a panel, which a thread has at once
  int64_t piece_bytes(i32 piece) const;        // piece number `piece` of the weight
  Work prepare_work() const;                   // before the wait
  // Behind the pieces of the one before: until piece `first` of the tile, the processor's `number`-th, can be taken.
  Work before_pieces(const StreamTile& tile, i32 first, i64 number) const;
  double piece_cycles(const StreamTile& tile, i32 piece) const;  // of a warp that takes it
  int32_t pieces_in_hand(const StreamTile& tile) const;          // of all warps
  // Whether x of a tile's next batch is copied while one is in use; of the batch at piece number `first`, in bytes.
  // Wide: with the weights that further blocks of rows find in L2.
  bool copies_ahead() const { return copies_ahead_; }
  int64_t x_bytes(const StreamTile& tile, i32 first) const;
  // Whether these copies begin as the batch before does, and wait for L2 as long as any.
  bool copies_one_ahead() const {
    return !tiles_.wide || (wide_parts_ > 1 && tables_.machine().tiles.wide_rooms == 2);
  }
  Work after_pieces(const StreamTile& tile, i32 first) const;  // behind those of a batch
  // Behind the last pieces of a tile without groups; of one with, behind the last one of an output in a row, and where
  // the others have handed in theirs before.
  Work write_work(const StreamTile& tile) const;
  Work hand_in_work(const StreamTile& tile) const;
  Work join_work() const;
  Work gather_work(const StreamTile& tile) const;
  // All of it but the pieces themselves. `gathered`: outputs of which this processor's were the last.
  Work total(Tiles own, int32_t gathered) const;

 private:
  int32_t weights() const;
  // Whether what a product looks up before its wait is of other tiles.
  bool is_behind() const { return tiles_.wide || tiles_.rows > tables_.machine().tiles.row_block; }
  bool uses_tiles() const { return i_.product.tile_use != 0; }
  Work use_work(const StreamTile& tile, i32 rows, i32 panel) const;  // rotates or appends them
  Work panel_work(const StreamTile& tile, i32 panel) const;          // what a panel's sums come to
  int32_t halves_of(const StreamTile& tile) const;                   // of a wide tile
  Work fold_work(const StreamTile& tile, i32 piece) const;           // of an exact one
  double codes_cycles(i32 k, i32 octets, int32_t parts, int32_t warps) const;

  const StepTables& tables_;
  const Instance& i_;
  const Stream& s_;
  StreamTiles tiles_;
  u32 bits_;  // of the epilogue
  bool tells_sums_, is_fma_, is_apart_, is_told_, takes_codes_, has_four_bits_, has_offsets_, copies_x_,
      copies_ahead_;
  bool keeps_in_output_;  // what the first weight of a gated product has come to
  int32_t count_;
  int32_t wide_parts_;  // of x, that wide tiles multiply
  int32_t slices_;      // of a piece, that their x comes by
  int32_t own_levels_;  // of their tree, that registers hold
  std::vector<i32> borders_;
};

}  // namespace ark::cuda::cost
