// What of a pointwise kernel depends on the operator: the loop over a block, one for each operator and compute type
// (base/ir/kernels/common.h). All else is compiled once for each type.
#pragma once

#include <cstdint>

#include "base/ir/ops.h"

namespace ark::kernels {

// x[j] = O(x[j], z[j]; p, q) for j < n. Where O takes one tensor, z is not read and may be null.
template <typename C>
using PointwiseLoop = void (*)(C* x, const C* z, int64_t n, double p, double q);

// Null if `op` is not pointwise or not computed on C: float, double, int64_t or uint64_t.
template <typename C>
PointwiseLoop<C> pointwise_loop(Op op);

}  // namespace ark::kernels
