// Sharded graph -> Program of one rank, phases unrolled; what the operators' rules in engine/ops/ work with.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/ir/decoder.h"
#include "engine/lower/fuse.h"
#include "engine/partition/plan.h"
#include "engine/program/program.h"
#include "engine/weights/stored_weights.h"

namespace ark {

// The constants that programs name by index; one table for all ranks of a model.
class ConstantTable {
 public:
  int32_t add(const ConstantPtr& constant);
  const std::vector<ConstantPtr>& list() const { return list_; }

 private:
  std::vector<ConstantPtr> list_;
  std::map<const Constant*, int32_t> index_;
};

struct LoweringOptions {
  SymbolValues max_symbols;  // of every symbol that shapes use
  int32_t page_size = 16;
  DType kv_dtype = DType::kF32;  // of keys and values
  Link link = Link::kDirect;
  const std::vector<CacheSpec>* caches = nullptr;  // null: a plain graph
  const StoredWeights* stored = nullptr;           // null: all as they are
  Activations activations = Activations::kAuto;
  Bf16Unit bf16 = Bf16Unit::kPairs;  // as of CompileOptions
  Precision attention = Precision::kF32;
  bool keeps_codes_of_tables = true;  // as of CompileOptions
  int32_t machine_ranks = 1;          // whose sums are made first
  bool send_zeros = false;
};

class Lowering {
 public:
  Lowering(const Sharded& sharded, const std::vector<Cluster>& clusters, const LoweringOptions& options,
           int32_t rank, ConstantTable& constants);

  // All phases without repeats and waits; buffers are written once a step each (static single assignment).
  Program run();

  // -- for rules
  Recipe recipe(const Node& matmul) const;
  // As the options want it, if its packed weight can be multiplied so.
  Precision precision(const Node& matmul, Operand weight) const;
  const Graph& graph() const { return sharded_.graph; }
  const Cluster& cluster() const { return *cluster_; }
  const LoweringOptions& options() const { return options_; }
  int32_t rank() const { return rank_; }
  int32_t ranks() const { return sharded_.ranks; }
  bool is_decoder() const { return options_.caches != nullptr; }
  // Part of `rank` of a value's axis; the whole axis if it is not split there.
  Range part(ValueId value, int axis, int32_t rank) const;
  Shape local_shape(ValueId value, int32_t rank) const;
  Shape local_shape(ValueId value) const { return local_shape(value, rank_); }

  // Operands. kNoValue gives the absent operand; constants become raw weights.
  Operand read(ValueId value);
  // A buffer for what goes from one phase of a node to another.
  Operand temporary(const std::string& name, const Shape& shape) {
    return {add_buffer({.dtype = DType::kF32, .name = name}, shape)};
  }
  // The buffer that the phase being emitted writes.
  Operand write(ValueId value);
  // A product's constant matrix [K, N], or [N, K] if `transposed`, as panels; quantized ones as they are, if they can
  // be cut as the recipes of all ranks say: so blocks are the same on any number of ranks.
  Operand panels(const Node& matmul, bool transposed) { return panels(matmul, 1, transposed)[0]; }
  // The same of all its inputs from `first` on, which come to be stored in one way.
  std::vector<Operand> panels(const Node& matmul, std::size_t first, bool transposed);
  bool are_stored_alike(Operand panels, Operand others) const;
  // A constant table whose rows are gathered: the panels of a MatMul if one has it, or if it is quantized; else raw.
  Operand table(ValueId weight);
  Operand pages(int64_t cache, bool values, int64_t kv_heads);
  // The inbox of what `peer` sends: `shape` is that of its message.
  Operand inbox(int32_t peer, const Shape& shape);
  // `value` gets no phase: it is `source` seen with another shape. False if source's memory cannot be shared.
  bool alias(ValueId value, ValueId source);

  ValId val(const Expr& e);
  // The grid follows from the operands, as the OpCode's row says.
  Phase& emit(const std::string& name, Variant variant, std::vector<Operand> operands);
  // One phase of `variant`, which sends what its operands say, to each of `peers`; `message` is the shape of the first.
  void send_to_peers(const std::string& name, const Variant& variant, const std::vector<Operand>& operands,
                     const Shape& message, const std::vector<int32_t>& peers);
  // One kGeneric phase; `attributes` overrides the node's.
  void emit_generic(const Node& node, const Attributes& attributes);
  void emit_generic(const Node& node);
  void lower(const Cluster& cluster);

 private:
  void lower_pointwise(const Cluster& cluster);
  void bind_inputs();
  void finish_outputs();
  BufferId add_buffer(Buffer buffer, const Shape& shape);
  // `as`: what stands for the value's constant, as codes if there is a block.
  Operand weight(ValueId value, const StoredWeights::Stored& as, Layout layout, bool transposed,
                 int32_t block = 0);
  StoredWeights::Stored stored(ValueId value) const;
  int32_t panel_block(const Constant& constant, bool transposed, std::span<const int32_t> borders) const;
  int32_t channel(int32_t peer, bool outgoing, const Shape& message);

  const Sharded& sharded_;
  const std::vector<Cluster>& clusters_;
  const LoweringOptions& options_;
  const int32_t rank_;
  ConstantTable& constants_;
  Program program_;
  const Cluster* cluster_ = nullptr;
  std::map<ValueId, BufferId> buffers_;     // values that have one
  std::map<std::string, BufferId> shared_;  // weights, pages, inboxes by what they hold
  std::map<std::string, ValId> vals_;
  std::map<std::string, int32_t> variants_;
  std::set<ValueId> panel_tables_;      // constants that some MatMul reads as transposed panels
  std::map<ValueId, int32_t> outputs_;  // graph outputs: their first index
};

// Those of a kRotary or kRotaryAppend phase.
Attributes rotary_attributes(const Node& rotary);

}  // namespace ark
