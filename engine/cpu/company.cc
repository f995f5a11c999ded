#include "engine/cpu/company.h"

#include <algorithm>

namespace ark {
namespace {

// Steps are looked at together that took so long: programs that share a core take turns of some milliseconds.
constexpr int64_t kSample = 10'000'000;
// Of a processor: what is less than a quarter more is no gain. On two cores, one of which has company, two processors
// do no more than one alone, and everybody else does less.
constexpr double kTie = 0.25;
constexpr int64_t kRare = 16;  // a trial that fails took less than a sixteenth of the time up to the next one

}  // namespace

void Company::Way::worked() {
  next = 0;
  backoff = std::max(kFirst, backoff / 4);
}

void Company::Way::failed(int64_t now, int64_t spent) {
  next = now + std::max(backoff, kRare * spent);
  backoff = std::min(2 * backoff, kLongest);
}

int32_t Company::active(int32_t most) {
  if (most != limit_) {
    limit_ = active_ = most;
    before_ = 0;
    forget();
  }
  return active_;
}

void Company::forget() {
  ran_ = worst_ = 0;
  std::ranges::fill(lost_, 0);
}

void Company::step_done(int64_t now, int64_t ran, std::span<const int64_t> lost) {
  ran_ += ran;
  // All wait for the one that lost most.
  worst_ += *std::ranges::max_element(lost);
  for (std::size_t p = 0; p < lost.size(); ++p) lost_[p] += lost[p];
  if (ran_ < kSample) return;
  const double share = std::min(1.0, static_cast<double>(worst_) / static_cast<double>(ran_));
  const double speed = active_ * (1 - share);  // in processors that lose nothing
  if (before_ > 0)
    judge(now, share, speed);
  else
    try_other(now, share, speed);
  forget();
}

void Company::judge(int64_t now, double share, double speed) {
  const bool is_fewer = active_ < before_;
  // Where time is lost whichever cores are used (a quota, a machine below this one), giving up some would not help.
  const bool works =
      is_fewer ? 2 * share <= share_before_ && speed >= speed_before_ - kTie : speed >= speed_before_ + kTie;
  Way& way = is_fewer ? fewer_ : more_;
  if (works) {
    way.worked();
    if (is_fewer) more_.next = now + more_.backoff;
  } else {
    way.failed(now, ran_);
    active_ = before_;
  }
  before_ = 0;
}

void Company::try_other(int64_t now, double share, double speed) {
  int32_t other = active_;
  if (active_ > 1 && speed < active_ - 1 + kTie && now >= fewer_.next) {
    const double much = static_cast<double>(ran_) * (1 - kTie) / active_;
    const auto crowded =
        std::ranges::count_if(lost_, [&](int64_t ns) { return static_cast<double>(ns) > much; });
    other = std::max(1, active_ - std::max(1, static_cast<int32_t>(crowded)));
  } else if (active_ < limit_ && now >= more_.next) {
    ++other;
  }
  if (other == active_) return;
  before_ = active_;
  share_before_ = share;
  speed_before_ = speed;
  active_ = other;
}

}  // namespace ark
