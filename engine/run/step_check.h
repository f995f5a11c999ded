// Refuses step descriptors that would make a loop read or write outside of its arrays.
#pragma once

#include <cstdint>
#include <span>

#include "engine/run/runner.h"
#include "engine/run/step.h"

namespace ark {

// Attention work items of a step, of at most `most` tokens each.
int64_t count_items(std::span<const StepSequence> sequences, int most);
// Throws Error(kInternal) naming the field: only a bug of the scheduler can get here. `max_items`: as compiled for.
void check_step(const StepDescriptor& step, const RunnerLimits& limits, int64_t max_items);

}  // namespace ark
