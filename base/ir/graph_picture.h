// A graph as a picture: nodes as boxes with their weights inside, values as edges with type and shape, equal layers
// drawn once ("x 30"), subgraphs as groups.
#pragma once

#include "base/ir/graph.h"
#include "base/ir/picture.h"

namespace ark {

Picture picture_of(const Graph& graph, std::string name);

}  // namespace ark
