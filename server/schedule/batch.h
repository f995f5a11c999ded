// Batching: what the next step computes.
#pragma once

#include "engine/run/step.h"
#include "server/schedule/state.h"

namespace ark::schedule {

// Fills an empty step: one token of every decoding sequence, then drafts of what follows these or chunks of prompts,
// within the token budget; takes pages for them and preempts where there are none. Notes in `flight` whom it is for.
// Stays empty if nothing can run now.
void fill_step(SchedulerState& state, StepDescriptor& step, Flight& flight);

}  // namespace ark::schedule
