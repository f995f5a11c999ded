// Inputs of decoder files that carry no data: how many rows of logits to make (transformers' logits_to_keep),
// which branch of an If to run (optimum's use_cache_branch). Found by what reads them.
#pragma once

#include <optional>

#include "importer/import.h"

namespace ark {

// The graph of `model` with these inputs settled: numbers so that as many rows of logits come out as there
// are tokens, conditions true, for the branch with a cache. They stay inputs that nothing reads, and
// Graph::settled says for what value. nullopt if there are none, or no value makes all rows come out.
// `options` as for build_graph, which calls this.
std::optional<Graph> build_settled(const onnx::Model& model, const ImportOptions& options);

}  // namespace ark
