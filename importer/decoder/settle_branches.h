// If by the length of a sequence: one branch for all sequences that are short enough.
#pragma once

#include "importer/decoder/roles.h"

namespace ark::decoder {

// Puts in place of each If whose condition neither tokens nor caches decide the branch that all steps of sequences of
// up to `length` tokens take. Whether there was one: then the graph holds up to `length` only. Throws Refusal where
// short and long sequences take different ones: what was computed for the first tokens stands in the cache, so no token
// form has both.
bool settle_branches(Graph& graph, const Roles& roles, int64_t length);

}  // namespace ark::decoder
