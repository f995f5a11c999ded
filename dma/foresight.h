// Waits whose end can be foreseen: who is far ahead of what it waits for sleeps until shortly before, and looks from
// then on. So a core is free while its thread has nothing to do, and the thread is there when its work comes. The
// writer of what is awaited makes no system call, unless it comes sooner than ever.
//
// How long is learned place by place (of a program: wait by wait), as a part of the time since the thread's wait
// before: steps of one token and of a thousand have about the same parts. Mean and deviation are estimated as TCP does
// round trips.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dma/wait.h"

namespace ark::dma {

// Mean and mean deviation of a series, the latest values count most.
class Estimate {
 public:
  void add(double value) {
    if (count_ == 0) deviation_ = value / 2;
    const double error = value - mean_;
    mean_ += error / (count_ < 8 ? ++count_ : 8);
    deviation_ += (std::abs(error) - deviation_) / 4;
  }
  bool is_known() const { return count_ >= 4; }
  double mean() const { return mean_; }
  double deviation() const { return deviation_; }

 private:
  double mean_ = 0, deviation_ = 0;
  int32_t count_ = 0;
};

// Of one thread. It asks no clock.
class Foresight {
 public:
  // Falling asleep and waking take up to 15 us of a core in a virtual machine: what is shorter saves nothing.
  static constexpr int64_t kWorth = 50'000;  // ns
  // Looks before a wait is timed, some microseconds: most waits are over by then.
  static constexpr uint32_t kBrief = 128;
  static constexpr double kSure = 2;          // deviations that a wait may be shorter than its mean
  static constexpr double kLatest = 200'000;  // ns: who wakes later than that was held up by something else
  // ns, before it is known: timers of usual threads are as coarse.
  static constexpr double kFirstLate = 60'000;

  // Without naps it only learns: for comparison.
  explicit Foresight(std::size_t places, bool naps = true) : places_(places), naps_(naps) {}

  // Work begins: a step.
  void begin(int64_t now) { last_ = now; }
  // How long to sleep at `place` in a wait that begins at `now`, ns; 0: not at all.
  int64_t nap(std::size_t place, int64_t now) {
    const Estimate& part = places_[place];
    if (!naps_ || !part.is_known()) return 0;
    const double least = (part.mean() - kSure * part.deviation()) * static_cast<double>(now - last_);
    const double late = late_.is_known() ? late_.mean() + 2 * late_.deviation() : kFirstLate;
    if (least - late >= kWorth) return std::min(static_cast<int64_t>(least - late), detail::kSleepSliceNs);
    // A machine that was busy need not be any more.
    if (late > kFirstLate && least - kFirstLate >= kWorth) late_.add(0.9 * late_.mean());
    return 0;
  }
  // The wait at `place` was over within kBrief looks; or took from `began` to `now`.
  void was_brief(std::size_t place) { places_[place].add(0); }
  void took(std::size_t place, int64_t began, int64_t now) {
    const auto work = static_cast<double>(std::max<int64_t>(began - last_, 1'000));
    places_[place].add(static_cast<double>(now - began) / work);
    last_ = now;
  }
  // A nap ended by itself, so much later than it was asked to.
  void woke_late(int64_t ns) { late_.add(std::min(static_cast<double>(ns), kLatest)); }

 private:
  std::vector<Estimate> places_;  // the wait, as a part of the time before it
  bool naps_;
  Estimate late_;     // ns
  int64_t last_ = 0;  // when the timed wait before was over
};

// As wait_until, at `place` of the calling thread's foresight.
template <class Ready>
[[nodiscard]] Fault wait_foreseen(Ready&& ready, const WaitPoint& at, const WaitContext& context,
                                  Foresight& foresight, std::size_t place) {
  if (ready()) return {};
  // With less than a CPU each, waits sleep at once.
  if (context.spin.spins <= Foresight::kBrief) return wait_until(ready, at, context);
  const bool is_metered = context.meter && at.peer >= 0;
  int64_t began = is_metered ? steady_ns() : 0;
  // Aborts and deadlines are seen by the wait below.
  for (uint32_t look = 0; look < Foresight::kBrief; ++look) {
    detail::relax();
    if (!ready()) continue;
    foresight.was_brief(place);
    if (is_metered) context.meter->count_peer(at.peer, steady_ns() - began);
    return {};
  }
  int64_t now = steady_ns();
  if (!is_metered) began = now;
  const int64_t asleep = now, end = now + foresight.nap(place, now);
  // Others raise the counter, too, which wakes.
  while (now < end && (now == asleep || now + Foresight::kWorth <= end) && !ready()) {
    detail::sleep_once(ready, Deadline::after(std::chrono::nanoseconds(end - now)), 0);
    now = steady_ns();
  }
  if (now > asleep) {
    if (now >= end) foresight.woke_late(now - end);
    if (context.meter) context.meter->count_sleep(now - asleep);
  }
  const Fault fault = detail::look_until(ready, at, context);
  now = steady_ns();
  if (is_metered) context.meter->count_peer(at.peer, now - began);
  foresight.took(place, began, now);
  return fault;
}

}  // namespace ark::dma
