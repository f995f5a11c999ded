// What a kernel call will cost, before it runs: what strangers' numbers ask for is known in time.
#pragma once

#include <functional>

#include "base/ir/graph.h"
#include "base/ir/kernel.h"

namespace ark {

// About multiply-adds of a plain kernel, each some nanoseconds; from above where the data decide. By sizes and
// attributes alone: operands may have no data. Outputs that are not known yet count nothing.
double work_of(const KernelCall& call);
// The same of a node by its shapes, whose sizes `size` gives; its attributes may be evaluated.
double work_of(const Graph& graph, const Node& node, const Attributes& attributes,
               const std::function<int64_t(const Expr&)>& size);

}  // namespace ark
