// Weights that a file stores in fewer bits and widens before use.
#pragma once

#include <functional>

#include "base/ir/graph.h"

namespace ark {

// The stored constant behind `id`: the value's own, or the one of fewer bits that is widened to it (exactly), either
// seen through movement that a lazy view can follow. nullptr if the value is something else. `made_by`, if given,
// is asked what constant a node makes; quantized ones may be cast to any floating type, as nothing rounds them.
ConstantPtr stored_constant(const Graph& graph, ValueId id,
                            const std::function<ConstantPtr(const Node&)>& made_by = nullptr);

}  // namespace ark
