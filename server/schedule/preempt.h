// Preemption: who gives pages away when there are none left.
#pragma once

#include "server/schedule/state.h"

namespace ark::schedule {

// Takes the pages of the youngest sequence that came after `needy`; it keeps its slot and is computed again later.
// Those that stand in the step being built stay. False if there is none: `needy` itself then waits for the older ones.
bool preempt_youngest(SchedulerState& state, const Sequence& needy, const Flight& building);

// Steps in flight may still read the pages; they can be taken again once those are done.
void give_back_pages(SchedulerState& state, Sequence& sequence);

}  // namespace ark::schedule
