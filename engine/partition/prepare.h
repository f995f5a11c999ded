// Rewrites a graph so that every sharding decision is one of a single node: the partitioner's own passes.
#pragma once

#include "base/ir/graph.h"

namespace ark {

// A copy of `graph` without dead nodes, in which
// - equal constants are one value, and MatMul weights are the untransposed constant (trans_b says the rest), so that
//   tied tables are seen as one;
// - 16-bit constants are used directly instead of through a Cast to f32, i32 ids without a Cast to i64.
Graph prepare(const Graph& graph);

}  // namespace ark
