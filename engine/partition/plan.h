// What the partitioner decides: how every value lies over the ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/ir/graph.h"
#include "engine/partition/cut_points.h"

namespace ark {

// How one value lies over the ranks.
struct Spec {
  enum class Kind : uint8_t { kReplicated, kSplit, kPartial } kind = Kind::kReplicated;
  int32_t axis = 0;  // kSplit
  // kSplit: per rank, ascending; may overlap where heads are shared (grouped queries).
  std::vector<Range> ranges;
  bool operator==(const Spec&) const = default;
};

struct Plan {
  std::vector<Spec> specs;           // per value of Compiled::graph
  double seconds = 0;                // estimated per decode step, for comparison only
  std::vector<std::string> summary;  // for people: "qkv columns by head 5|4, o rows, all-reduce 30x2, ..."
};

// A graph with its plan applied: what lowering reads, the same for all ranks.
struct Sharded {
  Graph graph;              // collectives inserted; constants stand once per way in which they are held
  std::vector<Spec> specs;  // per value of `graph`
  int32_t ranks = 1;
  // Products whose K the plan cuts, with K's units; on one rank too: their recipes have slabs there.
  std::map<NodeId, UnitAxis> row_parallel;
};

}  // namespace ark
