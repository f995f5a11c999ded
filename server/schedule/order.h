// Who comes first where not all prompts can: for slots, and for a step's tokens.
#pragma once

#include "server/schedule/state.h"

namespace ark::schedule {

// A sequence of `client` arrives, or tokens are computed for it.
void arrive(SchedulerState& state, Sequence& s);
void count_tokens(SchedulerState& state, const Sequence& s, int32_t prompts, int32_t generated);

// Whether its first token cannot come within slo_ttft any more, even if all were for it, while others' can.
bool is_late(const SchedulerState& state, const Sequence& s);

// Of each client's late ones the oldest has the turn until its prompt is read: it goes first as long as those that had
// turns have got less than one of kTurn parts of what is computed for the client while somebody is late.
void give_turns(SchedulerState& state);

// Whether `a` goes before `b`. Of different clients, the one for whom less has been computed. Of the same, who has the
// turn; who is not late; then the one with less left to read, but before it who has waited while kPatience times what
// it has left was computed for its client, by arrival: such a one is behind nobody who came later.
bool goes_before(const SchedulerState& state, const Sequence& a, const Sequence& b);

}  // namespace ark::schedule
