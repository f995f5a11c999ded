// Automatic sharding: for each node how its operands lie, chosen by cost over the whole graph.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ir/graph.h"
#include "engine/partition/axis_groups.h"
#include "engine/partition/cost.h"

namespace ark {

// How an operand lies, before cut points: whole on every rank, a partial sum on every rank, or split.
using Form = uint8_t;
inline constexpr Form kWhole = 0, kPartialSum = 1;
inline constexpr Form split_form(int axis) { return static_cast<Form>(2 + axis); }
inline constexpr bool is_split(Form form) { return form >= 2; }
inline constexpr int axis_of(Form form) { return form - 2; }

struct NodeChoice {
  std::vector<Form> inputs, outputs;
  bool sums = false;  // the loop that is split is summed over: outputs are partial sums
  bool operator==(const NodeChoice&) const = default;
};

struct Choices {
  std::vector<NodeChoice> nodes;  // per node of the graph
  double seconds = 0;             // of the priced step on the reference mesh
};

// The mesh that choices are made for, whatever the real one: the order in which sums are added follows from
// them, and must not depend on the number of ranks.
inline constexpr int kReferenceRanks = 2;

// Forms in which a value is at hand, as a bit mask; which conversions make `want` of them.
using FormMask = uint32_t;
inline FormMask bit(Form form) { return FormMask{1} << form; }
struct Conversion {
  bool reduce = false;   // of kPartialSum
  Form gather = kWhole;  // the split form to gather from; kWhole: no gather
  bool slice = false;    // of the whole value, to `want`
};
Conversion convert(FormMask have, Form want);

// Beam search over the topological order; the state is how live values lie.
Choices search(const Graph& graph, const AxisGroups& groups, const CostModel& costs = {});

}  // namespace ark
