// Einsum of two operands as Transpose, Reshape and MatMul, so that its rows can be followed.
#pragma once

#include "base/ir/graph.h"

namespace ark::decoder {

// Rewrites every Einsum of two operands without repeated labels or ellipses. Returns whether any was.
bool lower_einsum(Graph& graph);

}  // namespace ark::decoder
