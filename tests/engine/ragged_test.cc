// Ranks as processes of their own: equal bytes, orderly end, and a death that is noticed.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>

#include "base/error.h"
#include "dma/launch.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

constexpr const char* kServe = "--gtest_filter=RankProcess.DISABLED_Serve";
constexpr const char* kAlso = "--gtest_also_run_disabled_tests";

struct Prepared {
  Compiled compiled;
  RaggedOptions options;
};

Prepared prepare(int ranks) {
  CompileOptions c;
  c.ranks = ranks;
  c.max_tokens = 32;
  c.max_rows = 8;
  c.max_items = 32;
  c.page_size = 4;
  Prepared p{compile_decoder(llama_tokens(), c), {}};
  p.options.limits = {32, 8, 4, 64, 4, 0, 101, 2};
  p.options.max_items = 32;
  settle_pages(p.options.limits, p.compiled.programs, 1 << 20);
  p.options.threads = 1;
  p.options.step_deadline = std::chrono::seconds(20);
  return p;
}

std::unique_ptr<dma::Bootstrap> join(const dma::Environment& environment) {
  return dma::join_environment(environment, dma::Deadline::after(std::chrono::seconds(60)));
}

// What the other processes run; no test of its own.
TEST(RankProcess, DISABLED_Serve) {
  if (!dma::Environment::is_set()) return;
  const dma::Environment environment = dma::Environment::from_process();
  Prepared p = prepare(environment.size);
  try {
    serve_rank(std::move(p.compiled), p.options, join(environment));
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", environment.rank, error.what());
    std::_Exit(error.exit_code());
  }
}

std::vector<int32_t> prompt() { return {5, 17, 3, 99, 42, 7, 8}; }

TEST(RaggedProcesses, GiveTheBytesOfThreads) {
  Prepared local = prepare(1);
  const auto expected =
      run_greedy(*make_ragged_runner(std::move(local.compiled), local.options), prompt(), 4, 6);
  for (const int ranks : {2, 4}) {
    dma::RankProcesses processes(ranks, {kServe, kAlso});
    Prepared p = prepare(ranks);
    const auto runner = make_ragged_runner(std::move(p.compiled), p.options, join(processes.environment()));
    EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt(), 4, 6))) << ranks;
  }
}

// Steps run until something fails; the message must name rank 1, soon.
std::string run_until_failure(StepRunner& runner, int in_flight = 0) {
  try {
    for (; in_flight > 0; --in_flight) wait_for(runner);
    for (int i = 0; i < 100000; ++i) run_greedy(runner, prompt(), 4, 6);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    return error.what();
  }
  return "";
}

// The rank that dies is named soon, by what runs and by what only asks. Two seconds are the promise; a busy
// machine gets more, but less than the deadline of a step.
class RankDeath : public ::testing::TestWithParam<int> {
 protected:
  static constexpr std::chrono::seconds kSoon{10};
  RankDeath() : victim_(1 + GetParam()), name_("rank " + std::to_string(victim_)) {
    Prepared p = prepare(3);
    runner_ = make_ragged_runner(std::move(p.compiled), p.options, join(processes_.environment()));
    run_greedy(*runner_, prompt(), 4, 2);
  }
  void kill_victim() {
    killed_ = std::chrono::steady_clock::now();
    kill(processes_.pid(victim_), SIGKILL);
  }
  void expect_named(const std::string& why) const {
    EXPECT_LT(std::chrono::steady_clock::now() - killed_, kSoon);
    EXPECT_NE(why.find(name_), std::string::npos) << why;
  }

  const int victim_;
  const std::string name_;
  dma::RankProcesses processes_{3, {kServe, kAlso}};
  std::unique_ptr<RaggedRunner> runner_;
  std::chrono::steady_clock::time_point killed_;
};

TEST_P(RankDeath, WhileBusy) {
  std::jthread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    kill_victim();
  });
  const std::string why = run_until_failure(*runner_);
  killer.join();
  expect_named(why);
}

TEST_P(RankDeath, RightAfterAStep) {
  kill_victim();
  expect_named(run_until_failure(*runner_));
}

TEST_P(RankDeath, WithStepsInFlight) {
  Sequence s{.slot = 0, .tokens = prompt()};
  int32_t page = 0;
  for (int k = 0; k < 2; ++k) {
    StepDescriptor step;
    add_chunk(step, s, 3, 4, page, true, kWantToken);
    runner_->post(step);
  }
  kill_victim();
  expect_named(run_until_failure(*runner_, 2));
}

TEST_P(RankDeath, WhileParked) {
  while (!runner_->is_parked()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the others park by themselves
  kill_victim();
  while (runner_->failure().empty() && std::chrono::steady_clock::now() - killed_ < kSoon)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  expect_named(runner_->failure());
  EXPECT_THROW(run_greedy(*runner_, prompt(), 4, 2), Error);
}

INSTANTIATE_TEST_SUITE_P(Victims, RankDeath, ::testing::Range(0, 2));

TEST(RaggedRunner, PagesFollowFromTheBudget) {
  Prepared p = prepare(2);
  const int64_t page = page_bytes(p.compiled.programs);
  EXPECT_EQ(page, 2 * 2 * 2 * 8 * 4 * 4) << "layers x (k, v) x heads x dim x tokens x bytes";
  RunnerLimits limits = p.options.limits;
  settle_pages(limits, p.compiled.programs, page * 5 + 1);
  EXPECT_EQ(limits.pages, 5);
  EXPECT_EQ(limits.max_length, 20);
  limits = p.options.limits;
  settle_pages(limits, p.compiled.programs, page * 1000);
  EXPECT_EQ(limits.pages, 4 * 16) << "what 4 sequences of 64 tokens can use";
  EXPECT_EQ(limits.max_length, 64);
  EXPECT_THROW(settle_pages(limits, p.compiled.programs, 10), Error);
}

}  // namespace
}  // namespace ark::test
