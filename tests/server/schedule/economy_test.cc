// Joules against time: the bandit on a machine in virtual time, whose energy is read from a tree as the kernel shows
// it.
#include "server/schedule/economy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <fstream>
#include <map>
#include <random>

#include "base/energy.h"
#include "server/schedule/turns.h"
#include "tests/scratch_folder.h"
#include "tests/server/schedule/requests.h"

namespace ark::schedule {
namespace {

using Clock = Economy::Clock;

// A server of requests of 32 tokens that come at random, on 8 processors of which half read memory as fast as all.
class House {
 public:
  House(double weight, const Economy::Bounds& bounds, double requests_a_second = 3)
      : economy_({weight, [this] { return read_joules(); }}, bounds), gap_(requests_a_second) {
    next_ = gap_(random_);
  }

  // How long a step of so many streams takes, seconds, and what the machine draws meanwhile, watts.
  static double step_of(int32_t streams, int32_t processors) {
    return std::max(0.008, 0.032 / processors) + 0.0005 * streams * 8 / processors;
  }
  static double watts(int32_t processors) { return 20 + 10.0 * processors; }

  void run(double seconds) {
    const double end = now_ + seconds;
    of = {};
    while (now_ < end) turn();
  }

  struct Figures {
    int64_t tokens = 0, steps = 0, slow = 0, firsts = 0, late = 0;
    double joules = 0;                  // of work
    std::map<int32_t, double> seconds;  // by processors
    double a_token() const { return joules / static_cast<double>(tokens); }
    double share(int32_t processors) const {
      double all = 0;
      for (const auto& [count, time] : seconds) all += time;
      return seconds.contains(processors) ? seconds.at(processors) / all : 0;
    }
  };
  Figures of;  // of the last run

 private:
  static Clock::time_point at(double seconds) {
    return Clock::time_point(std::chrono::nanoseconds(std::llround((1 + seconds) * 1e9)));
  }
  void turn() {
    for (; next_ <= now_; next_ += gap_(random_)) waiting_.push_back(next_);
    if (running_.empty() && waiting_.empty()) return idle_until(next_);
    if (running_.empty()) {
      const auto hold = economy_.hold(static_cast<int32_t>(waiting_.size()), 0);
      const double until = hold ? waiting_[0] + std::chrono::duration<double>(*hold).count() : 0;
      if (until > now_ + 1e-9) return idle_until(std::min(until, next_));
      for (const double came : waiting_) economy_.held(now_ - came);
    }
    for (; !waiting_.empty(); waiting_.pop_front()) running_.push_back({waiting_[0], 32});
    const auto streams = static_cast<int32_t>(running_.size());
    economy_.begin(at(now_));
    const int32_t processors = economy_.point().processors > 0 ? economy_.point().processors : 8;
    const double took = step_of(streams, processors) * noise_(random_), begin = now_;
    now_ += took;
    joules_ += took * watts(processors);
    of.joules += took * watts(processors);
    of.tokens += streams;
    of.seconds[processors] += took;
    ++of.steps;
    of.slow += took > 0.014;
    for (Running& r : running_) {
      if (r.left-- < 32) continue;
      economy_.first_token(now_ - r.came);
      ++of.firsts;
      of.late += now_ - r.came > 0.4;
    }
    std::erase_if(running_, [](const Running& r) { return r.left == 0; });
    economy_.step_done(at(begin), at(now_), streams, 0, static_cast<int32_t>(running_.size()));
    if (running_.empty()) economy_.end(at(now_));
  }
  void idle_until(double then) {
    joules_ += 15 * (then - now_);
    now_ = then;
  }
  std::optional<double> read_joules() {
    const auto zone = folder_.path() / "intel-rapl:0";
    const auto write = [&](const char* name, const std::string& text) { std::ofstream(zone / name) << text; };
    if (!meter_) {
      std::filesystem::create_directories(zone);
      write("name", "package-0\n");
      write("max_energy_range_uj", "262143328850\n");
    }
    write("energy_uj", std::to_string(std::llround(std::fmod(joules_ * 1e6, 262143328850.0))) + "\n");
    if (!meter_) meter_.emplace(folder_.path());
    return meter_->joules();
  }

  struct Running {
    double came;
    int32_t left;
  };
  test::ScratchFolder folder_;
  std::optional<EnergyMeter> meter_;
  Economy economy_;
  std::mt19937 random_{7};
  std::exponential_distribution<double> gap_;
  std::uniform_real_distribution<double> noise_{0.97, 1.03};
  std::deque<double> waiting_;
  std::vector<Running> running_;
  double now_ = 0, next_ = 0, joules_ = 0;
};

TEST(Economy, WithoutWeightNothingIsChosen) {
  Economy economy({}, {.first = 1, .processors = 8, .sequences = 8});
  EXPECT_FALSE(economy.is_on());
  EXPECT_EQ(economy.point().gather, 1);
  EXPECT_EQ(economy.point().processors, 0);
  EXPECT_FALSE(economy.hold(1, 0));
}

TEST(Economy, JoulesAloneLeadToThePointOfFewest) {
  House all(0, {}), free(1, {.next = -1, .processors = 8, .sequences = 8});
  all.run(200);
  free.run(300);  // learns
  free.run(300);
  // Half of the processors: as fast, at 60 W instead of 100; fewer take longer than they save.
  EXPECT_GT(free.of.share(4) + free.of.share(2), 0.8);
  EXPECT_LT(free.of.a_token(), 0.75 * all.of.a_token());
}

TEST(Economy, BoundsAreKept) {
  House bound(1, {.first = 0.4, .next = 0.014, .processors = 8, .sequences = 8});
  bound.run(300);
  bound.run(300);
  EXPECT_GT(bound.of.share(4), 0.6);
  EXPECT_LT(bound.of.share(2), 0.02);
  EXPECT_LT(static_cast<double>(bound.of.slow), 0.03 * static_cast<double>(bound.of.steps));
  EXPECT_LT(static_cast<double>(bound.of.late), 0.01 * static_cast<double>(bound.of.firsts));
}

TEST(Economy, RequestsAreAwaitedWhereThatSaves) {
  House lonely(1, {.first = 2, .next = -1, .processors = 0, .sequences = 8}, 1);
  House at_once(1, {.next = -1, .processors = 0, .sequences = 8}, 1);
  for (House* house : {&lonely, &at_once}) {
    house->run(600);
    house->run(600);
  }
  EXPECT_LT(lonely.of.a_token(), 0.8 * at_once.of.a_token()) << "two share a step";
  House hasty(0.1, {.first = 2, .next = -1, .processors = 0, .sequences = 8}, 1);
  hasty.run(600);
  hasty.run(600);
  EXPECT_GT(hasty.of.a_token(), 0.9 * at_once.of.a_token()) << "time counts nine times as much";
}

TEST(Economy, WhatCannotBeReadTeachesNothing) {
  Economy economy({1, [] { return std::optional<double>(); }}, {.next = -1, .processors = 8, .sequences = 8});
  Clock::time_point now(std::chrono::seconds(1));
  economy.begin(now);
  for (int i = 0; i < 1000; ++i) {
    const auto begin = std::exchange(now, now + std::chrono::milliseconds(10));
    economy.step_done(begin, now, 4, 0, 4);
  }
  EXPECT_EQ(economy.point().processors, 8);
}

// The scheduler's turns: who is alone waits for a second one, but no longer than half of what is allowed.
TEST(Economy, TurnsHoldWhoIsAlone) {
  RunnerLimits limits = test::small_limits();
  limits.processors = 2;
  test::FakeRunner runner(limits);
  double joules = 0;
  SchedulerState state(limits, {.slo_ttft = 1, .economy = {1, [&] { return std::optional(joules += 1); }}});
  Turns turns(runner, state, [] {});
  auto now = Clock::now();
  int held = 0, together = 0;
  for (int i = 0; i < 400; ++i) {
    const auto come = [&](int32_t first) {
      GenerateRequest request;
      request.prompt = {first, i % 50};
      request.max_tokens = 3;
      turns.admit(make_sequence(std::move(request), {}, now));
    };
    const auto came = now;
    come(1);
    turns.settle(now);
    if (state.held_until > now) {
      ++held;
      EXPECT_TRUE(state.running.empty() && state.held_until <= came + std::chrono::milliseconds(500));
      if (i % 2) {
        now += std::chrono::milliseconds(20);
        come(2);
      } else {
        now = state.held_until;
      }
      turns.settle(now);
      if (state.economy.point().gather == 2) {
        EXPECT_EQ(state.waiting.size(), 0u);
        together += state.running.size() == 2;
      }
      if (state.held_until > now) turns.settle(now = state.held_until);
    }
    EXPECT_TRUE(state.waiting.empty());
    while (!state.running.empty()) {
      turns.post_steps([&] { return now; });
      now += std::chrono::milliseconds(30);
      if (auto result = runner.poll({})) turns.take_results(std::move(*result), now);
      turns.retire_finished();
    }
  }
  EXPECT_GT(held, 10);
  EXPECT_GT(together, 3);
}

}  // namespace
}  // namespace ark::schedule
