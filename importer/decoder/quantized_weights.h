// Weights that a file stores as integers and multiplies with as reals.
#pragma once

#include "base/ir/graph.h"

namespace ark::decoder {

// What a DequantizeLinear of a constant matrix makes, [its rows, its columns], or the weights of a
// MatMulNBits, [N, K], as a lazy matrix (base/ir/quantized.h). nullptr if it is another operator, reads
// something that is no constant, or quantizes in another way: zero points that are reals, rows of blocks out
// of order (g_idx), tensors of other ranks, 16 and 32 bits.
ConstantPtr quantized_weight(const Graph& graph, const Node& node);

// Gather(codes, ids) -> DequantizeLinear becomes the same of the whole table, then Gather, where scales do not
// depend on the row: rows of a table as every other file has them.
void dequantize_before_look_ups(Graph& graph);

// Products of bytes and what makes them real again, MatMulInteger -> Cast -> Mul with the scales of both,
// become products of reals with a DequantizeLinear of the weights: the rows are those that a
// DynamicQuantizeLinear rounded, by a scale for all rows of the step, which no token knows of another. The product
// says so (accuracy_level 4). Returns how many there were.
int products_of_reals(Graph& graph);

// DequantizeLinear(QuantizeLinear(x)) by one constant scale becomes what it does to each number: divide, round, clip,
// multiply. NaN stays NaN.
void spell_out_roundings(Graph& graph);

}  // namespace ark::decoder
