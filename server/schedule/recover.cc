#include "server/schedule/recover.h"

#include <algorithm>

#include "server/schedule/preempt.h"

namespace ark::schedule {
namespace {

constexpr auto kWindow = std::chrono::minutes(1);  // that losses are counted in
constexpr int32_t kToBlame = 3;   // losses in a row, alone at the last: two may be a coincidence
constexpr int32_t kClearing = 4;  // tokens that clear a sequence: computed as a prompt's, then one by one

}  // namespace

std::shared_ptr<Sequence> take_back(SchedulerState& state) {
  std::vector<std::shared_ptr<Sequence>> present;
  for (const Flight& flight : state.flights) {
    for (const auto& [s, index] : flight.rows)
      if (index < s->prompt_size()) s->prompt_rows = std::min(s->prompt_rows, index - 1);
    for (const auto& s : flight.members)
      if (!s->done && std::find(present.begin(), present.end(), s) == present.end()) present.push_back(s);
    state.pages.step_done(flight.step);
  }
  state.flights.clear();
  for (const auto& s : state.running) {
    s->in_flight = 0;
    if (s->done) continue;
    give_back_pages(state, *s);
    s->posted = 0;
    s->redo = Cause::kRestart;
    s->drafts.clear();
    s->asked = static_cast<int32_t>(s->tokens.size());
  }
  state.pages.forget();
  for (const auto& s : present) {
    const auto tokens = static_cast<int32_t>(s->tokens.size());
    s->losses = tokens < s->cleared_at ? s->losses + 1 : 1;
    s->cleared_at = tokens + kClearing;
  }

  const auto now = std::chrono::steady_clock::now();
  state.losses.push_back(now);
  while (now - state.losses.front() > kWindow) state.losses.pop_front();
  if (present.size() != 1 || present[0]->losses < kToBlame) return nullptr;
  for (int32_t more = present[0]->losses; more > 1 && state.losses.size() > 1; --more)
    state.losses.pop_back();
  return present[0];
}

}  // namespace ark::schedule
