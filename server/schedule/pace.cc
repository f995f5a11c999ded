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

double Recent::greatest() const {
  return *std::max_element(values_.begin(),
                           values_.begin() + static_cast<std::ptrdiff_t>(std::min(count_, values_.size())));
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
    learn(load.decodes, seconds);
    return alone_.add(seconds);
  }
  if (load.prompts < kLeast) return;  // too few to tell
  const double alone = load.decodes > 0 && !alone_.empty() ? alone_.median() : 0;
  each_.add(std::max(0.0, seconds - alone) / load.prompts);
}

int32_t Pace::prompt_tokens(int32_t decodes, int32_t most, double wanted) {
  if (decodes == 0) {
    if (alone_.empty() || each_.empty()) return most;
    const double tokens = std::max(kTurn, kWorth * fixed()) / std::max(each_.median(), 1e-9);
    return static_cast<int32_t>(std::clamp<double>(tokens, std::min(kLeast, most), most));
  }
  if (++since_alone_ > kProbe || alone_.empty()) {
    since_alone_ = 0;
    return 0;
  }
  const double alone = alone_.median();
  const double room = (wanted > 0 ? wanted : kStretch * alone) * kAim - alone;
  const double each = wanted > 0 && !each_.empty() ? each_.greatest() : guess();
  latest_ = static_cast<int32_t>(std::clamp<double>(room / std::max(each, 1e-9), kLeast, 2 * latest_));
  return std::min(latest_, most);
}

void Pace::learn(double streams, double seconds) {
  for (double* sum : {&n_, &d_, &s_, &dd_, &ds_}) *sum *= kFade;
  ++n_, d_ += streams, s_ += seconds, dd_ += streams * streams, ds_ += streams * seconds;
}

std::optional<Pace::Line> Pace::line() const {
  const double spread = n_ * dd_ - d_ * d_;
  if (n_ < 4 || spread < n_ * n_ * 0.25) return {};
  const double each = std::max((n_ * ds_ - d_ * s_) / spread, 1e-9);
  return Line{(s_ - each * d_) / n_, each};
}

double Pace::fixed() const {
  const auto known = line();
  return known ? std::clamp(known->none, 0.0, alone_.median()) : alone_.median();
}

int32_t Pace::most_streams(double wanted) const {
  const auto known = line();
  if (wanted <= 0 || !known) return INT32_MAX;
  const auto [none, each] = *known;
  if (none + each > wanted) return INT32_MAX;  // one alone takes longer: nobody is helped by waiting
  return static_cast<int32_t>(std::clamp((wanted * kAim - guess() * kLeast - none) / each, 1.0, 1e6));
}

double Pace::guess() const { return each_.empty() ? alone_.median() / kLeast : each_.median(); }

Pace::Prices Pace::draft_prices() const {
  if (alone_.empty() || since_alone_ >= kProbe) return {};
  return {alone_.median(), std::max(draft_.empty() ? guess() : draft_.median(), 1e-9)};
}

}  // namespace ark::schedule
