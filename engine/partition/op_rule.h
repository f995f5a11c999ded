// What the compiler knows of one operator: along which axes it can be split over ranks, and how it becomes a
// phase. One small file per operator (or family) in engine/ops/, one line each in engine/ops/registry.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ir/graph.h"

namespace ark {

class Lowering;

// One axis of an operator's iteration space. If every operand that runs along it is split in the same units,
// ranks compute independently. Operands that do not run along it (-1) are whole on every rank.
struct Loop {
  std::vector<int> inputs;   // per input of the node: the axis that runs along the loop, or -1
  std::vector<int> outputs;  // per output; -1 in a summing loop: each rank gets a partial sum
  bool sums = false;
  // Bit i: input i has size / n elements that n neighbours share (kv heads of grouped queries); a rank needs
  // those that its part of the loop touches.
  uint32_t shared = 0;
};

struct OpRule {
  Op op = Op::kIdentity;
  std::vector<Loop> (*loops)(const Graph& graph, const Node& node) = nullptr;  // null: none
  // Pure movement of its first input: a partial sum in gives a partial sum out, exactly.
  bool moves = false;
  // Emits the phases of `node`; null: one kGeneric phase through the operator's kernel.
  void (*lower)(Lowering& lowering, const Node& node) = nullptr;
};

// Never null: operators without a rule of their own get an empty one.
const OpRule& rule_of(Op op);
std::vector<Loop> loops_of(const Graph& graph, const Node& node);

// Helpers of the rules. Shapes are those of the whole values; values of unknown rank have none.
const Shape& shape_of(const Graph& graph, ValueId value);  // empty if unknown or absent
int rank_of(const Graph& graph, ValueId value);
// A loop of `node` with no operand on it.
Loop empty_loop(const Node& node);

// Loops of operator families; the rules in engine/ops/ pick from these.
std::vector<Loop> pointwise_loops(const Graph& graph, const Node& node);  // numpy broadcasting, one output
std::vector<Loop> reshape_loops(const Graph& graph,
                                const Node& node);  // leading axes of merged or split groups
std::vector<Loop> transpose_loops(const Graph& graph, const Node& node);
// Axes that the operator treats one index at a time, at the same place in all data operands and outputs:
std::vector<Loop> other_axes_loops(const Graph& graph,
                                   const Node& node);  // all but attribute `axis` (or `axes`)
std::vector<Loop> leading_axes_loops(const Graph& graph, const Node& node);  // those before attribute `axis`
std::vector<Loop> reduce_loops(const Graph& graph, const Node& node);        // all but the reduced axes

}  // namespace ark
