// How many tokens a sequence may have before the file's own tables end.
#pragma once

#include "importer/decoder/roles.h"

namespace ark::decoder {

// The largest length <= `wanted` at which every mask, position and table that tokens meet can be evaluated.
int64_t reachable_length(const Graph& graph, const Roles& roles, int64_t wanted);

}  // namespace ark::decoder
