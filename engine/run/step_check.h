// Refuses step descriptors that would make a loop read or write outside of its arrays.
#pragma once

#include <cstdint>

#include "engine/run/runner.h"
#include "engine/run/step.h"

namespace ark {

// Attention work items of a step whose items cover `item_tokens` query tokens at most.
int64_t count_items(const StepDescriptor& step, int32_t item_tokens);
// Throws Error(kInternal) naming the field: only a bug of the scheduler can get here.
void check_step(const StepDescriptor& step, const RunnerLimits& limits);

}  // namespace ark
