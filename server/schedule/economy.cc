#include "server/schedule/economy.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace ark::schedule {
namespace {

double seconds_of(Economy::Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// All, then quarters fewer, at least one.
std::vector<int32_t> processor_counts(int32_t all) {
  std::vector<int32_t> counts;
  for (int32_t quarters = 4; quarters > 0; --quarters) {
    const int32_t count = std::max(1, (all * quarters + 3) / 4);
    if (counts.empty() || counts.back() != count) counts.push_back(count);
  }
  return counts;
}

// Bounds hold for 99 of a hundred; of few, one may be an accident.
bool is_much(int32_t broken, int32_t of) { return broken > std::max(1, of / 100); }

}  // namespace

Economy::Economy(EconomyOptions options, const Bounds& bounds)
    : options_(std::move(options)), bounds_(bounds) {
  std::vector<int32_t> gathers = {1};
  for (int32_t n = 2; is_on() && bounds_.first > 0 && n <= std::min(8, bounds_.sequences); n *= 2)
    gathers.push_back(n);
  const std::vector<int32_t> processors =
      is_on() && bounds_.processors > 0 ? processor_counts(bounds_.processors) : std::vector<int32_t>{0};
  for (const int32_t count : processors)
    for (const int32_t gather : gathers) arms_.push_back({{gather, count}});
}

std::optional<Economy::Clock::duration> Economy::hold(int32_t waiting, double read) const {
  // The other half is for what cannot be known beforehand.
  const double room = bounds_.first / 2 - read;
  if (waiting == 0 || waiting >= point().gather || room <= 0) return std::nullopt;
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(room));
}

void Economy::begin(Clock::time_point now) {
  if (!is_on() || is_working_) return;
  is_working_ = true;
  last_ = now;
  joules_before_ = options_.joules();
}

void Economy::end(Clock::time_point now) {
  if (!is_on() || !is_working_) return;
  is_working_ = false;
  last_ = now;
  const std::optional<double> joules = options_.joules();
  if (joules && joules_before_) joules_ += *joules - *joules_before_;
  joules_before_.reset();
}

void Economy::step_done(Clock::time_point begin, Clock::time_point now, int32_t decodes, int32_t prompts,
                        int32_t present) {
  if (!is_on()) return;
  const double since = seconds_of(now - std::exchange(last_, now)), took = seconds_of(now - begin);
  busy_ += since;
  waited_ += since * present;
  work_ += decodes + kRead * prompts;
  ++steps_;
  if (prompts == 0) {
    alone_ += took;
    ++alone_steps_;
  }
  const double bound = next_bound();
  // Pace stretches the others itself.
  const bool is_bound = decodes > 0 && (prompts == 0 || bounds_.next > 0);
  slow_steps_ += is_bound && bound > 0 && took > bound;
  if ((busy_ >= kWindow && steps_ >= kLeast) || breaks_bound()) judge();
}

void Economy::first_token(double seconds) {
  if (!is_on()) return;
  ++firsts_;
  late_firsts_ += bounds_.first > 0 && seconds > bounds_.first;
}

double Economy::next_bound() const {
  if (bounds_.next != 0) return bounds_.next;
  const Arm& first = arms_.front();
  return first.count > 0 ? kStretch * first.alone / first.count : 0;
}

bool Economy::breaks_bound() const {
  return current_ > 0 && (is_much(slow_steps_, steps_) || is_much(late_firsts_, firsts_));
}

void Economy::judge() {
  const std::optional<double> joules = options_.joules();
  if (joules && joules_before_) joules_ += *joules - *joules_before_;
  joules_before_ = joules;
  Arm& arm = arms_[current_];
  if (breaks_bound()) {
    // Whatever asks even more of the same is left out, too.
    for (Arm& other : arms_)
      if (other.point.gather >= arm.point.gather && other.point.processors <= arm.point.processors)
        other.barred = std::max(other.barred, arm.bar);
    arm.bar = std::min(2 * arm.bar, 512);
  } else if (work_ > 0 && joules_ > 0) {
    for (Arm& other : arms_)
      for (double* value : {&other.joules, &other.seconds, &other.alone, &other.count}) *value *= kForget;
    arm.joules += joules_ / work_;
    arm.seconds += waited_ / work_;
    arm.alone += alone_steps_ > 0 ? alone_ / alone_steps_ : 0;
    ++arm.count;
  }
  for (Arm& other : arms_) other.barred = std::max(0, other.barred - 1);
  forget_window();
  choose();
}

void Economy::forget_window() {
  work_ = busy_ = waited_ = joules_ = alone_ = 0;
  steps_ = alone_steps_ = slow_steps_ = firsts_ = late_firsts_ = 0;
}

void Economy::choose() {
  const Arm& first = arms_.front();
  if (first.count < 0.5) {  // what all others are measured by
    current_ = 0;
    return;
  }
  double total = 0, least = INFINITY;
  for (const Arm& arm : arms_) total += arm.count;
  for (std::size_t i = 0; i < arms_.size(); ++i) {
    const Arm& arm = arms_[i];
    if (arm.barred > 0 && i > 0) continue;
    const double mean =
        arm.count > 0 ? options_.weight * (arm.joules / arm.count) / (first.joules / first.count) +
                            (1 - options_.weight) * (arm.seconds / arm.count) / (first.seconds / first.count)
                      : -INFINITY;
    const double cost = mean - kDoubt * std::sqrt(std::log(1 + total) / std::max(arm.count, 1e-9));
    if (cost < least) {
      least = cost;
      current_ = i;
    }
    if (arm.count == 0) break;  // one step further than what is known
  }
}

}  // namespace ark::schedule
