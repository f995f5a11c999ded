// Applies a plan to a graph: collectives become nodes, every value gets its spec.
#pragma once

#include "engine/partition/plan.h"
#include "engine/partition/search.h"

namespace ark {

// `graph` is prepared. With one rank nothing is inserted, but `row_parallel` is filled all the same.
Sharded insert_collectives(const Graph& graph, const AxisGroups& groups, const Choices& choices,
                           int32_t ranks);

}  // namespace ark
