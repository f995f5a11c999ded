#include "server/schedule/pace.h"

#include <algorithm>
#include <utility>

namespace ark::schedule {

double Recent::median() const {
  auto sorted = values_;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(std::min(count_, sorted.size()));
  const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), middle, end);
  return *middle;
}

void Pace::step_done(const Load& load, Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - std::max(load.posted, last_done_)).count();
  const double since_last = std::chrono::duration<double>(now - std::exchange(last_done_, now)).count();
  if (load.drafts > 0) {
    // That nothing was in flight beside it is part of the price.
    ++since_alone_;
    since_draft_ = 0;
    return draft_.add(std::max(0.0, since_last - alone_.median()) / load.drafts);
  }
  if (load.prompts == 0) {
    since_alone_ = 0;
    // High prices, too, are looked at again.
    if (++since_draft_ % kForget == 0 && !draft_.empty()) draft_.add(guess());
    return alone_.add(seconds);
  }
  if (load.prompts < kLeast) return;  // too few to tell
  const double alone = load.decodes > 0 && !alone_.empty() ? alone_.median() : 0;
  each_.add(std::max(0.0, seconds - alone) / load.prompts);
}

int32_t Pace::prompt_tokens(int32_t decodes, int32_t most, double wanted) {
  if (decodes == 0) return most;
  if (++since_alone_ > kProbe || alone_.empty()) {
    since_alone_ = 0;
    return 0;
  }
  const double alone = alone_.median();
  const double room = (wanted > 0 ? wanted : kStretch * alone) * kAim - alone;
  latest_ = static_cast<int32_t>(std::clamp<double>(room / std::max(guess(), 1e-9), kLeast, 2 * latest_));
  return std::min(latest_, most);
}

double Pace::guess() const { return each_.empty() ? alone_.median() / kLeast : each_.median(); }

Pace::Prices Pace::draft_prices() const {
  if (alone_.empty() || since_alone_ >= kProbe) return {};
  return {alone_.median(), std::max(draft_.empty() ? guess() : draft_.median(), 1e-9)};
}

}  // namespace ark::schedule
