// Ranks as processes of their own: equal bytes, orderly end, and a death that is noticed.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
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
  p.options.kv_bytes = 1 << 20;
  p.options.threads = 1;
  p.options.step_deadline = std::chrono::seconds(20);
  return p;
}

// What the other processes run; no test of its own.
TEST(RankProcess, DISABLED_Serve) {
  if (!dma::Environment::is_set()) return;
  const dma::Environment environment = dma::Environment::from_process();
  Prepared p = prepare(environment.size);
  try {
    serve_rank(std::move(p.compiled), p.options, environment);
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
    const auto runner = make_ragged_runner(std::move(p.compiled), p.options, processes.environment());
    EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt(), 4, 6))) << ranks;
  }
}

// Steps run until something fails; the message must name rank 1, soon.
std::string run_until_failure(StepRunner& runner) {
  try {
    for (int i = 0; i < 100000; ++i) run_greedy(runner, prompt(), 4, 6);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    return error.what();
  }
  return "";
}

TEST(RaggedProcesses, DeathOfABusyRankIsNamedWithinTwoSeconds) {
  dma::RankProcesses processes(2, {kServe, kAlso});
  Prepared p = prepare(2);
  const auto runner = make_ragged_runner(std::move(p.compiled), p.options, processes.environment());
  run_greedy(*runner, prompt(), 4, 2);
  std::chrono::steady_clock::time_point killed;
  std::jthread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    killed = std::chrono::steady_clock::now();
    kill(processes.pid(1), SIGKILL);
  });
  const std::string why = run_until_failure(*runner);
  killer.join();
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(2));
  EXPECT_NE(why.find("rank 1"), std::string::npos) << why;
}

TEST(RaggedProcesses, DeathOfAnIdleRankIsReported) {
  dma::RankProcesses processes(2, {kServe, kAlso});
  Prepared p = prepare(2);
  const auto runner = make_ragged_runner(std::move(p.compiled), p.options, processes.environment());
  run_greedy(*runner, prompt(), 4, 2);
  kill(processes.pid(1), SIGKILL);
  for (int i = 0; i < 200 && runner->failure().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_NE(runner->failure().find("rank 1"), std::string::npos) << runner->failure();
  EXPECT_THROW(run_greedy(*runner, prompt(), 4, 2), Error);
}

TEST(RaggedRunner, PagesFollowFromTheBudget) {
  Prepared p = prepare(2);
  const int64_t page = page_bytes(p.compiled.programs);
  EXPECT_EQ(page, 2 * 2 * 2 * 8 * 4 * 4) << "layers x (k, v) x heads x dim x tokens x bytes";
  p.options.kv_bytes = page * 5 + 1;
  const auto runner = make_ragged_runner(std::move(p.compiled), p.options);
  EXPECT_EQ(runner->limits().pages, 5);
  EXPECT_EQ(runner->limits().max_length, 20);
  Prepared none = prepare(1);
  none.options.kv_bytes = 10;
  EXPECT_THROW(make_ragged_runner(std::move(none.compiled), none.options), Error);
}

}  // namespace
}  // namespace ark::test
