// The plain kernels (base/ir/kernel.h) as CPU drivers run them: a faster one where this machine's vectors give
// the same bits.
#pragma once

#include "base/ir/kernel.h"

namespace ark {

// nullptr where find_kernel() has none.
const Kernel* find_cpu_kernel(Op op);

}  // namespace ark
