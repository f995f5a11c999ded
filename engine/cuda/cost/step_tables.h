// A rank's image as its loop reads it in one step: its tables, the step's sizes, and which instances wait for which,
// read back from the waits themselves. No weights and no GPU: addresses are only told apart.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/cuda/make_image.h"
#include "engine/program/kv_codec.h"

namespace ark::cuda::cost {

// A step: `count` tokens of each sequence, behind those that are cached.
struct StepShape {
  struct Sequence {
    int32_t count = 1, cached = 0;
  };
  std::vector<Sequence> sequences;  // each with one row of logits
};

// What compiled programs are to run on.
struct StepMachine {
  int32_t processors = 0, stages = 0;  // of a rank; of its ring of weights
  TileShape tiles = kLargestTiles;
  int32_t ahead = 0;  // pieces that a block asks for ahead of the ring
  int32_t ranks = 1;  // that share the GPU; others have GPUs that it reaches
  // Whether consumers have taken others' registers: so do GPUs that have room for these tiles.
  bool moves_registers() const { return tiles == kLargestTiles; }
};
// Of a GPU that `ranks` share. Throws Error(kUnsupported) if it has not a processor for each.
StepMachine machine_of(int32_t processors, int32_t shared_per_block, int64_t l2_bytes, int32_t ranks);

class StepTables {
 public:
  // Of rank 0 of `setups`, which are all ranks and go all `ways`, whose flags are not read. `options`: limits and
  // max_items; processors are the machine's. Throws Error(kUnsupported) naming the node that no device has code for.
  StepTables(const std::vector<RankSetup>& setups, ExecutorOptions options, const StepMachine& machine,
             Numerics numerics, int32_t groups, const StepShape& shape, RankWays ways = {});

  const Program& program() const { return *program_; }
  const StepMachine& machine() const { return machine_; }
  int32_t stages() const { return stages_; }  // of the ring in this step
  const DeviceVariant& variant(const Instance& i) const {
    return variants_.all()[static_cast<std::size_t>(i.variant)];
  }

  const std::vector<Instance>& instances() const { return instances_; }
  // Whether it sends to a rank of another GPU, or receives from one.
  bool leaves_gpu(const Instance& i) const;
  // By instance: the earlier ones that must be complete; those that send what it receives.
  const std::vector<std::vector<int32_t>>& needs() const { return needs_; }
  // By instance: the earlier ones that tell it by what they store (engine/cuda/lamport.h).
  const std::vector<std::vector<int32_t>>& told() const { return told_; }
  // Whether instances of this step tell others so.
  bool tells() const { return tells_; }
  bool tells_sums(const Instance& i) const;
  int32_t leaving_rows() const { return leaving_rows_; }  // LoopParameters::leaving_rows
  // Bytes that a processor clears before the first instance, if the step before had as many rows.
  int64_t cleared_bytes() const { return cleared_bytes_; }
  // Of an instance, those that it waits for in this step.
  int32_t waits(const Instance& i) const;
  // Whether ranks exchange its numbers by what they store (engine/cuda/rank_parts.h); whether it adds these up; a sum
  // that the norm behind adds up, or that norm; what does nothing then: a send, or such a sum.
  bool tells_ranks(const Instance& i) const;
  bool adds_parts(const Instance& i) const;
  bool is_by_norm(const Instance& i) const;
  bool is_left_out(const Instance& i) const;
  // Whether it is a matrix product.
  bool multiplies(const Instance& i) const;
  // Whether, in this step, each rank sends or adds up shares of the sum (engine/cuda/rank_shares.h); or stores them,
  // as a product.
  bool shares(const Instance& i) const;
  bool tells_any_ranks() const { return tells_any_ranks_; }
  // Whether its counter is raised without a release.
  bool is_quiet(const Instance& i) const { return tells_ && i.is_quiet != 0; }
  const std::vector<AttentionItem>& items() const { return items_; }
  int32_t splits() const { return splits_; }

  i32 size(Size s) const { return s >= 0 ? s : vals_[static_cast<std::size_t>(~s)]; }
  i64 product(const Size (&sizes)[4]) const {
    i64 all = 1;
    for (const Size s : sizes) all *= size(s);
    return all;
  }
  // How pages hold keys and values beside which a product's tiles go on (Appended).
  KvFormat appended_format(const Instance& i) const;
  // A word of the tables, by its address on the device.
  i32 word(u64 address) const;

 private:
  template <class T>
  std::vector<T> table(u64 address, std::size_t count) const;
  void read_needs();
  void read_told();

  const Program* program_;
  StepMachine machine_;
  VariantSet variants_;
  std::vector<std::byte> bytes_;
  std::vector<Instance> instances_;
  std::vector<Wait> waits_;
  std::vector<std::vector<int32_t>> needs_, told_;
  std::vector<AttentionItem> items_;
  std::vector<i32> vals_;
  int32_t splits_ = 1, stages_ = 0, leaving_rows_ = 0;
  bool tells_ = false, tells_ranks_ = false, tells_any_ranks_ = false;
  int64_t shares_from_ = 0;
  int64_t cleared_bytes_ = 0;
};

}  // namespace ark::cuda::cost
