#include "server/schedule/preempt.h"

#include <algorithm>

#include "server/schedule/prefix.h"

namespace ark::schedule {

bool preempt_youngest(SchedulerState& state, const Sequence& needy, const Flight& building) {
  for (auto it = state.running.rbegin(); it != state.running.rend(); ++it) {
    const std::shared_ptr<Sequence> victim = *it;
    if (victim->arrival <= needy.arrival) return false;
    const bool in_step =
        std::find(building.members.begin(), building.members.end(), victim) != building.members.end();
    if (victim->done || in_step || victim->pages.empty()) continue;
    give_back_pages(state, *victim);
    victim->posted = 0;
    victim->drafts.clear();
    victim->redo = Cause::kPages;
    victim->waits_for_pages = true;
    victim->ticket->mark_preempted();
    ++state.counts.preemptions;
    return true;
  }
  return false;
}

void give_back_pages(SchedulerState& state, Sequence& s) {
  share_pages(state, s, false);
  s.fetch.reset();
  s.follows = false;
  for (; !s.pages.empty(); s.pages.pop_back())  // the last first: what continues a page goes before it
    state.pages.give_back(s.pages.back(), s.in_flight ? s.last_step : 0);
  s.pages_known = s.shared = 0;
}

}  // namespace ark::schedule
