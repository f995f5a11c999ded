// Loops of operator families; the rules in engine/ops/ pick from these.
#pragma once

#include <vector>

#include "engine/partition/op_rule.h"

namespace ark {

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
