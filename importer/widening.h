// Weights that a file stores in 16 bits and widens before use.
#pragma once

#include "importer/graph.h"

namespace ark {

// The stored constant behind `id`: the value's own, or the 16-bit one that it widens to f32 (exactly), either
// seen through movement that a lazy view can follow. nullptr if the value is something else.
ConstantPtr stored_constant(const Graph& graph, ValueId id);

}  // namespace ark
