// How many tokens of prompts a step may take, so that streams beside it keep their pace.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ark::schedule {

// The median of the last few values: one slow step of a busy machine does not move it.
class Recent {
 public:
  void add(double value) { values_[count_++ % values_.size()] = value; }
  bool empty() const { return count_ == 0; }
  double median() const;

 private:
  std::array<double, 7> values_{};
  std::size_t count_ = 0;
};

// Learns from finished steps what a step of streams alone takes, and what each token of a prompt adds.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;
  // Tokens of prompts in a step: they go on, whatever the streams wish.
  static constexpr int32_t kLeast = 8;
  static constexpr int32_t kProbe = 32;  // every so many steps streams are alone, to see what that takes
  static constexpr double kStretch = 2;  // how much longer than streams alone a step may take
  static constexpr double kAim = 0.85;   // of that: steps differ

  // A step's tokens, and when it was posted.
  struct Load {
    int32_t decodes = 0, prompts = 0;
    Clock::time_point posted{};
  };

  // The step was posted at load.posted and done at `now`; it began when it was posted or when the one before was done.
  void step_done(const Load& load, Clock::time_point now);

  // Tokens of prompts for a step with so many streams; `most` without any. `wanted`: seconds that a step may take, 0:
  // kStretch times what streams alone take.
  int32_t prompt_tokens(int32_t decodes, int32_t most, double wanted);

 private:
  Recent alone_, each_;  // seconds: a step without prompts; each token of a prompt
  Clock::time_point last_done_{};
  int32_t since_alone_ = 0;  // steps with streams and prompts since one without prompts
  int32_t latest_ = kLeast;  // tokens of prompts beside streams; they grow by doubling at most
};

}  // namespace ark::schedule
