// How many tokens a sequence may have before the file's own tables end.
#pragma once

#include "importer/decoder/roles.h"

namespace ark::decoder {

constexpr int64_t kProbedLength = 32'768;  // a file is held unlimited if nothing in it ends before

// The largest length <= `wanted` at which every mask, position and table that tokens meet can be evaluated.
int64_t reachable_length(const Graph& graph, const Roles& roles, int64_t wanted);

}  // namespace ark::decoder
