// Mixtures of experts that a file computes expert by expert, as products with chosen experts.
#pragma once

#include "base/ir/graph.h"

namespace ark::decoder {

// Rewrites each sum over all experts that is proven to be one (Op::kExpertMatMul). Returns whether any was.
bool gather_expert_loops(Graph& graph);

}  // namespace ark::decoder
