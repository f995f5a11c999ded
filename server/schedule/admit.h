// Admission: what may wait at all, and who of those that wait gets a slot.
#pragma once

#include "server/schedule/state.h"

namespace ark::schedule {

// Throws Error(kInvalidArgument) if the request can never run (too long, unknown token, ...). Any thread.
void check(const GenerateRequest& request, const RunnerLimits& limits);

// Slots go to who comes first by goes_before; to nobody while Economy has them wait. A preempted sequence keeps its
// slot.
void give_slots(SchedulerState& state);

}  // namespace ark::schedule
