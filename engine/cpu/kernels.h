// The plain kernels (base/ir/kernel.h) as CPU drivers run them: those of vector_kernels/ where there are, which sum up
// in an order of their own, the same on every instruction set.
#pragma once

#include "base/ir/kernel.h"

namespace ark {

// nullptr where find_kernel() has none.
const Kernel* find_cpu_kernel(Op op);

}  // namespace ark
