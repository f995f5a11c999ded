// Clean-ups of a finished token graph, each exact up to floating-point reassociation.
#pragma once

#include "importer/decoder/token_builder.h"

namespace ark::decoder {

// Rotations of queries and keys by tables read at the position become kRotary with half tables; constant
// factors on queries and keys move into the attention's scale. Returns the number of rotations fused.
int fuse_rotary(TokenBuilder& out);

// A product with a constant weight of which only column ranges are read becomes one product per range, with
// lazily sliced weights. Returns the number of products split.
int split_projections(TokenBuilder& out);

// Products of rows with weights that are looked up for them, and sums over all experts of which all but the chosen ones
// count nothing, become ExpertMatMul. Returns the number fused.
int fuse_experts(TokenBuilder& out);

// Puts kSelectRows on every value that passes from what caches need to what only the logits need, and
// restates the latter over "rows". The graph is built anew.
Graph select_rows(const Graph& graph);

}  // namespace ark::decoder
