// Host evaluation of canonical operators on constants, by their plain kernels on one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ir/graph.h"

namespace ark {

// True if evaluate() runs `op`: its cost is that of its operands and results (of products: bounded).
bool can_evaluate(Op op);

// The outputs of `node` on `inputs` (null dtype where absent); `dtypes` says how many, and of which types
// (kUndefined: whatever the kernel makes). nullopt if that is not for the host to decide: sizes that hold symbols,
// strings, integer division by zero, casts of what the integer cannot hold, results of `most` elements. Throws
// Error(kBadModel) naming the node where operands do not fit: shapes, indices out of range and the like.
std::optional<std::vector<Tensor>> evaluate(const Node& node, const std::vector<Tensor>& inputs,
                                            const std::vector<DType>& dtypes, int64_t most = INT64_MAX);

}  // namespace ark
