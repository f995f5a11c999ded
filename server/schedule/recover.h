// Recovery: the runner has lost what it computed and cached.
#pragma once

#include <memory>

#include "server/schedule/state.h"

namespace ark::schedule {

// Takes all steps in flight and all pages back: what runs is computed again from the tokens that it has, as after a
// preemption. Notes the loss. Returns the sequence that is to blame, or null: who was in flight at two losses in a row
// without getting on runs alone from then on, and who is alone at a third one is it. Its losses count as one.
std::shared_ptr<Sequence> take_back(SchedulerState& state);

}  // namespace ark::schedule
