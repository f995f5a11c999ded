// Host evaluation of canonical operators on constants: reals in double, integers and bools in int64.
#pragma once

#include <optional>
#include <vector>

#include "base/ir/graph.h"

namespace ark {

// True if evaluate() knows `op`.
bool can_evaluate(Op op);

// The outputs of `node` on `inputs` (null dtype where absent), typed as `dtypes`. nullopt if this combination
// of operator, attributes and types is not evaluated on the host. Throws Error(kBadModel) on indices out of
// range and the like, naming the node.
std::optional<std::vector<Tensor>> evaluate(const Node& node, const std::vector<Tensor>& inputs,
                                            const std::vector<DType>& dtypes);

}  // namespace ark
