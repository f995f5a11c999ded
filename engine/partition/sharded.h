// A graph with its plan applied: what lowering reads, the same for all ranks.
#pragma once

#include <map>
#include <vector>

#include "base/ir/graph.h"
#include "engine/partition/cut_points.h"
#include "engine/partition/plan.h"

namespace ark {

struct Sharded {
  Graph graph;              // collectives inserted; constants stand once per way in which they are held
  std::vector<Spec> specs;  // per value of `graph`
  int32_t ranks = 1;
  // MatMul nodes whose K the plan cuts, with K's units; on one rank too: their recipes have slabs there.
  std::map<NodeId, UnitAxis> row_parallel;
};

}  // namespace ark
