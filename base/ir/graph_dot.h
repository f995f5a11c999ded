// A graph as Graphviz text, for people.
#pragma once

#include <string>

#include "base/ir/graph.h"

namespace ark {

// Nodes as boxes, values as edges labelled with type and shape, weights as notes; subgraphs as clusters.
std::string dot(const Graph& graph);

}  // namespace ark
