// Weights that a file stores as integers and multiplies with as reals.
#pragma once

#include "importer/graph.h"

namespace ark::decoder {

// What a DequantizeLinear of a constant matrix makes, [its rows, its columns], or the weights of a
// MatMulNBits, [N, K], as a lazy matrix (importer/quantised.h). nullptr if it is another operator, reads
// something that is no constant, or quantises in another way: zero points that are reals, rows of blocks out
// of order (g_idx), tensors of other ranks, 16 and 32 bits.
ConstantPtr quantised_weight(const Graph& graph, const Node& node);

}  // namespace ark::decoder
