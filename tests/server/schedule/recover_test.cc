// A runner that is lost and begins anew: everyone gets the tokens they would have had, and who kills it is found.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <random>

#include "server/schedule/scheduler.h"
#include "tests/server/schedule/requests.h"

namespace ark::schedule::recovery {
namespace {

using namespace std::chrono_literals;
using test::collect, test::FakeRunner, test::Outcome;

constexpr int32_t kPoison = 49;  // a token whose step kills the runner

// Forgets everything when it is lost, like a process that dies.
class MortalRunner : public StepRunner {
 public:
  // Whether it dies of a step, when that would be done.
  using Dies = std::function<bool(const StepDescriptor&)>;
  MortalRunner(RunnerLimits limits, Dies dies) : limits_(limits), dies_(std::move(dies)) { begin(); }

  const RunnerLimits& limits() const override { return limits_; }
  uint64_t post(const StepDescriptor& step) override {
    steps_.push_back(step);
    return before_ + inner_->post(step);
  }
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override {
    if (steps_.empty()) return std::nullopt;
    if (dies_(steps_.front())) lose();
    steps_.pop_front();
    std::optional<StepResult> result = inner_->poll(timeout);
    last_ = result->step += before_;
    return result;
  }
  bool ready(std::chrono::microseconds) override {
    if (dies_idle.exchange(false)) lose();
    return is_ready;
  }
  void abort(const std::string&) override {}

  std::atomic<bool> dies_idle{false}, is_ready{true};

 private:
  void begin() {
    RunnerLimits inner = limits_;
    inner.vocabulary = kPoison;  // which is never generated
    inner_ = std::make_unique<FakeRunner>(inner);
  }
  [[noreturn]] void lose() {
    before_ = last_ + steps_.size();
    steps_.clear();
    begin();
    throw RunnerLost(Code::kUnavailable, "it was struck by lightning");
  }

  RunnerLimits limits_;
  Dies dies_;
  std::unique_ptr<FakeRunner> inner_;
  std::deque<StepDescriptor> steps_;
  uint64_t before_ = 0, last_ = 0;
};

bool has_poison(const StepDescriptor& step) {
  return std::count(step.tokens.begin(), step.tokens.end(), kPoison) > 0;
}

RunnerLimits small_limits() { return test::small_limits(kPoison); }
GenerateRequest random_request(std::mt19937& random) { return test::random_request(random, kPoison); }

void expect_whole(const GenerateRequest& request, const Outcome& got) {
  const Outcome expected = test::expected_outcome(request, kPoison);
  EXPECT_EQ(got.how, expected.how);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.prompt, expected.prompt);
}

template <typename Condition>
void until(Condition condition) {
  for (const auto end = std::chrono::steady_clock::now() + 20s; !condition();) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    std::this_thread::sleep_for(1ms);
  }
}

TEST(Recover, LossesAtAnyStepChangeNoTokenAndNoLogprobOfAPrompt) {
  int64_t restarts = 0, hits = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    RunnerLimits limits = small_limits();
    limits.max_tokens = 4 + static_cast<int32_t>(random() % 16);
    limits.max_rows = 1 + static_cast<int32_t>(random() % 6);
    limits.max_slots = 1 + static_cast<int32_t>(random() % 5);
    limits.depth = 1 + static_cast<int32_t>(random() % 3);
    limits.pages = 16 + static_cast<int32_t>(random() % 8);
    std::mt19937 fate(seed);
    uint64_t left = 1 + fate() % 60;
    MortalRunner runner(limits, [&](const StepDescriptor&) {
      if (--left > 0) return false;
      left = 60 + fate() % 60;  // enough that nobody is suspected
      return true;
    });
    Scheduler scheduler(runner, {.max_restarts = 1000});
    std::vector<std::pair<GenerateRequest, std::shared_ptr<Ticket>>> all;
    for (int i = 0; i < 30; ++i) {
      GenerateRequest request = random_request(random);
      all.emplace_back(request, scheduler.submit(request));
    }
    for (auto& [request, ticket] : all) expect_whole(request, collect(*ticket));
    until([&] { return scheduler.stats().pages_held == 0; });
    restarts += scheduler.stats().restarts;
    hits += scheduler.stats().prefix_hits;
  }
  EXPECT_GT(restarts, 40);
  EXPECT_GT(hits, 300);
}

TEST(Recover, WhoKillsTheRunnerIsFoundAmongMany) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    RunnerLimits limits = small_limits();
    limits.vocabulary = kPoison + 1;
    limits.max_slots = 1 + static_cast<int32_t>(random() % 6);
    limits.pages = 16 + static_cast<int32_t>(random() % 8);
    MortalRunner runner(limits, has_poison);
    Scheduler scheduler(runner, {.max_restarts = 1000});
    std::vector<std::pair<GenerateRequest, std::shared_ptr<Ticket>>> all;
    for (int i = 0; i < 20; ++i) {
      GenerateRequest request = random_request(random);
      request.max_tokens = 1 + request.max_tokens;
      if (i % 5 == 2) request.prompt[random() % request.prompt.size()] = kPoison;
      all.emplace_back(request, scheduler.submit(request));
    }
    for (auto& [request, ticket] : all) {
      const Outcome got = collect(*ticket);
      EXPECT_NE(got.how, Finish::kRunning);
      if (!std::count(request.prompt.begin(), request.prompt.end(), kPoison)) {
        expect_whole(request, got);
      } else {
        EXPECT_EQ(got.how, Finish::kFailed);
        const std::string why = ticket->error().what();
        EXPECT_NE(why.find("as it computed this request"), std::string::npos) << why;
        EXPECT_NE(why.find("lightning"), std::string::npos);
      }
    }
    EXPECT_EQ(scheduler.failure(), "");
    EXPECT_LE(scheduler.stats().restarts, 4 * 3);
  }
}

// Each is found after three losses, which then count as one.
TEST(Recover, LossesOfOneThatIsFoundCountAsOne) {
  RunnerLimits limits = small_limits();
  limits.vocabulary = kPoison + 1;
  MortalRunner runner(limits, has_poison);
  Scheduler scheduler(runner, {.max_restarts = 4});
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(collect(*scheduler.submit({.prompt = {1, kPoison, 2}, .max_tokens = 3})).how, Finish::kFailed);
  EXPECT_EQ(scheduler.failure(), "");
  EXPECT_EQ(collect(*scheduler.submit({.prompt = {1, 2}, .max_tokens = 3})).how, Finish::kLength);
  EXPECT_EQ(collect(*scheduler.submit({.prompt = {1, kPoison, 2}, .max_tokens = 3})).how, Finish::kFailed);
  EXPECT_NE(scheduler.failure().find("5 times within a minute"), std::string::npos) << scheduler.failure();
}

TEST(Recover, MoreLossesThanAllowedEndItWithTheReason) {
  MortalRunner runner(small_limits(), [](const StepDescriptor&) { return false; });
  Scheduler scheduler(runner, {.max_restarts = 2});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(scheduler.failure(), "");
    runner.dies_idle = true;
    until([&] { return !runner.dies_idle && scheduler.stats().restarts == i + (i < 2); });
  }
  until([&] { return !scheduler.failure().empty(); });
  EXPECT_NE(scheduler.failure().find("3 times within a minute, more than --max-restarts"), std::string::npos);
  EXPECT_NE(scheduler.failure().find("lightning"), std::string::npos);
  EXPECT_THROW(scheduler.submit({.prompt = {1}}), Error);
}

TEST(Recover, WhatComesMeanwhileWaits) {
  MortalRunner runner(small_limits(), [](const StepDescriptor&) { return false; });
  Scheduler scheduler(runner, {});
  EXPECT_EQ(scheduler.restarting(), "");
  runner.is_ready = false;
  runner.dies_idle = true;
  until([&] { return scheduler.restarting() == "it was struck by lightning"; });
  const GenerateRequest request{.prompt = {3, 1, 4}, .max_tokens = 5};
  const auto ticket = scheduler.submit(request), gone = scheduler.submit(request);
  gone->cancel();
  EXPECT_EQ(collect(*gone).how, Finish::kCancelled);
  std::vector<TokenEvent> events;
  EXPECT_EQ(ticket->wait(events, 50ms), Finish::kRunning);
  runner.is_ready = true;
  expect_whole(request, collect(*ticket));
  EXPECT_EQ(scheduler.restarting(), "");
}

TEST(Recover, ShutdownDoesNotWaitForARunnerThatBeginsAnew) {
  MortalRunner runner(small_limits(), [](const StepDescriptor&) { return false; });
  Scheduler scheduler(runner, {});
  runner.is_ready = false;
  runner.dies_idle = true;
  until([&] { return !scheduler.restarting().empty(); });
  const auto ticket = scheduler.submit({.prompt = {1}});
  scheduler.shutdown();
  EXPECT_EQ(collect(*ticket).how, Finish::kFailed);
}

}  // namespace
}  // namespace ark::schedule::recovery
