// How many tokens of prompts a step may take, so that streams beside it keep their pace.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace ark::schedule {

// The median of the last few values: one slow step of a busy machine does not move it.
class Recent {
 public:
  void add(double value) { values_[count_++ % values_.size()] = value; }
  bool empty() const { return count_ == 0; }
  double median() const;
  double greatest() const;

 private:
  std::array<double, 7> values_{};
  std::size_t count_ = 0;
};

// Learns from finished steps what a step of streams alone takes, and what each token of a prompt and each draft adds.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;
  // Tokens of prompts in a step: they go on, whatever the streams wish.
  static constexpr int32_t kLeast = 8;
  static constexpr int32_t kProbe = 32;    // every so many steps streams are alone, to see what that takes
  static constexpr int32_t kForget = 256;  // steps without drafts after which one price of them is forgotten
  static constexpr double kStretch = 2;    // how much longer than streams alone a step may take
  // What is known of streams counts so much less after each step of them.
  static constexpr double kFade = 0.98;
  static constexpr double kAim = 0.85;  // of that: steps differ
  // Seconds of a step without streams: who comes next waits for two such steps, which are under way, and not for whole
  // prompts.
  static constexpr double kTurn = 0.05;
  // It may be longer where it must be: what a step costs beside its tokens shall be a tenth of it.
  static constexpr double kWorth = 10;

  // A step's tokens, and when it was posted.
  struct Load {
    int32_t decodes = 0, prompts = 0;
    Clock::time_point posted{};
    int32_t drafts = 0;
  };

  // The step was posted at load.posted and done at `now`; it began when it was posted or when the one before was done.
  void step_done(const Load& load, Clock::time_point now);

  // Nothing was computed meanwhile: it is no part of a draft's price.
  void spent_drafting(Clock::duration time) { last_done_ += time; }

  // Tokens of prompts for a step with so many streams, up to `most`. `wanted`: seconds that a step beside streams may
  // take, 0: kStretch times what streams alone take.
  int32_t prompt_tokens(int32_t decodes, int32_t most, double wanted);

  // Streams with which a step still has room for prompts, if it may take so many seconds; as many as there are where
  // `wanted` is 0 or below, that is not known, or no step is so short.
  int32_t most_streams(double wanted) const;

  struct Prices {
    double alone = 0, each = 0;  // seconds: a step of streams alone; what each draft adds to it. 0: not known
  };
  Prices draft_prices() const;
  // Seconds of a prompt's token; 0: not known.
  double each() const { return each_.empty() ? 0 : each_.median(); }
  double alone() const { return alone_.empty() ? 0 : alone_.median(); }  // as in Prices

 private:
  void learn(double streams, double seconds);
  double guess() const;  // of what a token adds
  double fixed() const;  // seconds of a step without tokens
  // Seconds of a step of streams alone, by their number; nothing unless numbers were seen that differ by one at least.
  struct Line {
    double none = 0, each = 0;
  };
  std::optional<Line> line() const;

  Recent alone_, each_, draft_;  // seconds: a step of streams alone; each token of a prompt; each draft
  // Sums over steps of streams alone, the latest count most: weights, streams, seconds, products.
  double n_ = 0, d_ = 0, s_ = 0, dd_ = 0, ds_ = 0;
  Clock::time_point last_done_{};
  int32_t since_alone_ = 0;  // steps with streams and others since one of streams alone
  int32_t since_draft_ = 0;  // steps of streams alone since one with drafts
  int32_t latest_ = kLeast;  // tokens of prompts beside streams; they grow by doubling at most
};

}  // namespace ark::schedule
