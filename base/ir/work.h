// What a kernel call will cost, before it runs: what strangers' numbers ask for is known in time.
#pragma once

#include "base/ir/kernel.h"

namespace ark {

// About multiply-adds of a plain kernel, each some nanoseconds; from above where the data decide. By sizes and
// attributes alone: operands may have no data. Outputs that are not known yet count nothing.
double work_of(const KernelCall& call);

}  // namespace ark
