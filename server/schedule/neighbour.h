// Pages that another server has computed: who asks for them, how long that may take, and what comes of it.
#pragma once

#include "engine/run/runner.h"
#include "server/schedule/state.h"

namespace ark::schedule {

// Between steps. Asks for the pages that new sequences lack, where that is as quick as computing them or nobody knows;
// takes what has come. Time is all that it can cost: at most what computing the pages would take, unless the neighbours
// compute (PageSource).
void ask_neighbours(SchedulerState& state, StepRunner& runner);

}  // namespace ark::schedule
