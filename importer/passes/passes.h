// The passes over the canonical graph, one a file; their order is the list in passes.cc. Each returns whether
// it changed anything, keeps the graph verifiable, and does nothing when run again on its own result.
#pragma once

#include "base/ir/graph.h"

namespace ark::passes {

bool remove_dead_code(Graph& graph);
// Part of remove_dead_code: statistics and indices beside a first output become kNoValue where nothing reads
// them, whatever the file names.
void drop_unread_outputs(Graph& graph);
bool fold_constants(Graph& graph);     // constants within budget, elements of shapes, bounds of slices
bool unify_symbols(Graph& graph);      // one name for sizes that the graph proves equal
bool merge_duplicates(Graph& graph);   // common subexpressions
bool cancel_movement(Graph& graph);    // Identity, Cast to the same type, Reshape and Transpose chains
bool sink_widening(Graph& graph);      // look-ups in tables of 16 bits before their widening
bool absorb_transposes(Graph& graph);  // MatMul(x, Transpose(w)) -> trans_b on the one stored w
bool fuse_norms(Graph& graph);
bool fuse_gelu(Graph& graph);
bool fuse_silu(Graph& graph);

}  // namespace ark::passes
