// Which operating point serves with the fewest joules for the time that it costs: a bandit over how many requests an
// idle machine waits for, and how many processors compute, as Zeus (NSDI'23) finds a training's batch size and power.
// Bounded by what a first token and a next one may take. It asks no clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace ark::schedule {

struct EconomyOptions {
  double weight = 0;  // of joules against time, 0 to 1; 0: every step as soon and as fast as it can be
  // Of all that the server runs on, ascending; nothing where it cannot be read, which then is no measure of anything.
  std::function<std::optional<double>()> joules;
};

struct OperatingPoint {
  int32_t gather = 1;      // requests for which a machine waits that has nothing to do
  int32_t processors = 0;  // of each rank; 0: all
};

class Economy {
 public:
  using Clock = std::chrono::steady_clock;
  struct Bounds {
    double first = 0;  // seconds until a first token; 0: unbounded, and then nobody is waited for
    // Seconds between tokens; 0: kStretch times what all processors take, below: any.
    double next = 0;
    int32_t processors = 0;  // of each rank; 0: not to be chosen
    int32_t sequences = 1;   // that run at once
  };
  static constexpr double kStretch = 2;
  static constexpr double kWindow = 1;     // seconds of work after which a point is judged, at least
  static constexpr int32_t kLeast = 16;    // steps of these, at least
  static constexpr double kForget = 0.99;  // what is known counts so much less after each window
  // Points that are little known are taken for so much cheaper, times a root.
  static constexpr double kDoubt = 0.1;
  // A token that is read is so much of the work of one that is generated.
  static constexpr double kRead = 0.125;

  Economy(EconomyOptions options, const Bounds& bounds);

  bool is_on() const { return options_.weight > 0; }
  // The point of now.
  const OperatingPoint& point() const { return arms_[current_].point; }
  // How long a machine that has nothing to do waits for others since the first of `waiting` requests came, which have
  // `read` seconds of prompts; nullopt: no longer.
  std::optional<Clock::duration> hold(int32_t waiting, double read) const;

  // There is work from now on; and none any more. Only what is used meanwhile counts.
  void begin(Clock::time_point now);
  void end(Clock::time_point now);
  // A step that began at `begin` is done, with so many tokens of streams and of prompts, for `present` requests that
  // run or wait.
  void step_done(Clock::time_point begin, Clock::time_point now, int32_t decodes, int32_t prompts,
                 int32_t present);
  // A request's first token came so many seconds after the request.
  void first_token(double seconds);
  // Requests have been held for so long in all, in seconds.
  void held(double seconds) { waited_ += seconds; }

 private:
  struct Arm {
    OperatingPoint point;
    double joules = 0, seconds = 0, alone = 0, count = 0;  // sums over windows of what a token took; windows
    int32_t barred = 0, bar = 8;                           // windows that it is left out; the next time
  };

  void judge();
  void choose();
  bool breaks_bound() const;
  void forget_window();
  double next_bound() const;

  const EconomyOptions options_;
  const Bounds bounds_;
  std::vector<Arm> arms_;
  std::size_t current_ = 0;

  // Of this window.
  double work_ = 0, busy_ = 0, waited_ = 0, joules_ = 0;  // tokens; seconds; seconds of requests; joules
  double alone_ = 0;                                      // seconds of steps of streams alone
  int32_t steps_ = 0, alone_steps_ = 0, slow_steps_ = 0, firsts_ = 0, late_firsts_ = 0;
  std::optional<double> joules_before_;  // at the begin of the work, or of the window
  bool is_working_ = false;
  Clock::time_point last_{};
};

}  // namespace ark::schedule
