// What steps lose: rules, and real threads that are stopped and that have no core.
#include "engine/run/step_cost.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <thread>

#include "engine/run/step_words.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(StepCost, WhoWaitedLeastWasLate) {
  const RankCost ranks[] = {{.waited_ns = 9 * kMs, .rank = 0}, {.waited_ns = 2 * kMs, .rank = 1}};
  const StepCost cost = cost_of(ranks, 2);
  EXPECT_EQ(cost.wire_ns, 2 * kMs);
  EXPECT_EQ(cost.late_ns, 7 * kMs);
  EXPECT_EQ(cost.late_rank, 1);
  EXPECT_EQ(cost.lost_ns, 0);
}

TEST(StepCost, ALateRankThatHadNoCoreIsALostCore) {
  const RankCost ranks[] = {{.waited_ns = 9 * kMs, .rank = 0}, {.rank = 1, .lost_ns = 9 * kMs}};
  const StepCost cost = cost_of(ranks, 2);
  EXPECT_EQ(cost.lost_ns, 9 * kMs);
  EXPECT_EQ(cost.lost_rank, 1);
  EXPECT_EQ(cost.late_ns, 0);
}

TEST(StepCost, FaultsStopsAndStolenCoresAreToldApart) {
  const auto of = [](const ProcessorCost& processor) {
    const ProcessorCost processors[] = {{}, processor};
    const RankCost ranks[] = {cost_of_rank(0, processors)};
    return cost_of(ranks, 1);
  };
  EXPECT_EQ(of({.off_ns = 8 * kMs, .faults = 3, .switches = 1}).faulted_ns, 6 * kMs);
  EXPECT_EQ(of({.off_ns = 8 * kMs, .faults = 3, .switches = 1}).lost_ns, 2 * kMs);
  EXPECT_EQ(of({.off_ns = 300 * kMs, .switches = 2, .stops = 1}).late_ns, 260 * kMs);
  EXPECT_EQ(of({.off_ns = 300 * kMs, .switches = 2}).lost_ns, 300 * kMs);
  EXPECT_EQ(of({.off_ns = 5 * kMs}).lost_ns, 5 * kMs);      // by another machine on the same processor
  EXPECT_EQ(of({.delayed_ns = 5 * kMs}).lost_ns, 5 * kMs);  // woken, but by nobody's core
}

TEST(StepCost, WithoutTheOthersWordsARankKnowsForWhomItWaited) {
  const RankCost ranks[] = {{.waited_ns = 9 * kMs, .longest_ns = 5 * kMs, .longest_peer = 3}};
  EXPECT_EQ(cost_of(ranks, 4).late_ns, 9 * kMs);
  EXPECT_EQ(cost_of(ranks, 4).late_rank, 3);
  EXPECT_EQ(cost_of(ranks, 4).wire_ns, 0);
  EXPECT_EQ(cost_of({}, 4).late_ns, 0);
}

// Two ranks' ends of a group, over direct and over posted links.
class StepWordsOver : public testing::TestWithParam<bool> {
 protected:
  static std::vector<std::unique_ptr<dma::Group>> make_groups(int ranks) {
    dma::EndpointSpec spec;
    spec.channels = {StepWords::channel(dma::Priority::kDecode)};
    spec.force_posted = GetParam();
    return dma::make_local_groups(
        ranks, [&](int) { return spec; }, dma::Deadline::after(std::chrono::seconds(20)));
  }
};

TEST_P(StepWordsOver, RanksTellWhatTheirStepsCost) {
  const auto groups = make_groups(3);
  std::vector<StepWords> words;
  for (const auto& group : groups) words.emplace_back(*group, 0);
  const dma::WaitContext context{.deadline = dma::Deadline::after(std::chrono::seconds(20))};
  for (uint64_t step = 1; step <= 40; ++step) {  // five times around the slots
    const auto ms = static_cast<int64_t>(step) * kMs;
    const RankCost own{.waited_ns = 10'000 * kMs};  // it waits half a second for them, at most
    ASSERT_FALSE(words[2].tell(step, {.waited_ns = 3 * ms, .rank = 2}, context));
    ASSERT_FALSE(words[1].tell(step, {.waited_ns = 2 * ms, .rank = 1, .lost_ns = ms}, context));
    const StepCost cost = words[0].cost_of_step(step, own);
    EXPECT_EQ(cost.wire_ns, 2 * ms);
    EXPECT_EQ(cost.lost_ns, ms);
    EXPECT_EQ(cost.lost_rank, 1);
    EXPECT_EQ(cost.late_ns, own.waited_ns - 3 * ms);
    EXPECT_EQ(cost.late_rank, 1);
  }
}

TEST_P(StepWordsOver, WhileWordsAreLateTheLastOnesCount) {
  const auto groups = make_groups(2);
  StepWords first(*groups[0], 0), other(*groups[1], 0);
  const dma::WaitContext context{.deadline = dma::Deadline::after(std::chrono::seconds(20))};
  const RankCost own{.waited_ns = 80 * kMs, .longest_ns = 80 * kMs, .longest_peer = 1};
  const auto expect = [&](uint64_t step, int64_t wire_ms) {
    const StepCost cost = first.cost_of_step(step, own);
    EXPECT_EQ(cost.wire_ns, wire_ms * kMs) << step;
    EXPECT_EQ(cost.late_ns, own.waited_ns - wire_ms * kMs) << step;
    EXPECT_EQ(cost.late_rank, 1) << step;
  };
  const auto await = [&](uint64_t step) { ASSERT_FALSE(groups[0]->receiver(1, 0).wait(step, context)); };
  expect(1, 0);  // nothing is known yet
  ASSERT_FALSE(other.tell(1, {.waited_ns = 60 * kMs, .rank = 1}, context));
  await(1);
  expect(2, 60);  // as in the first
  expect(3, 60);  // the second's has not come: still as in the first
  ASSERT_FALSE(other.tell(2, {.rank = 1}, context));
  ASSERT_FALSE(other.tell(3, {.waited_ns = 20 * kMs, .rank = 1}, context));
  await(3);
  expect(4, 20);
}

TEST_P(StepWordsOver, AWordOfAnotherStepOrRankIsNone) {
  const auto groups = make_groups(2);
  StepWords first(*groups[0], 0), other(*groups[1], 0);
  const dma::WaitContext context{.deadline = dma::Deadline::after(std::chrono::seconds(20))};
  const RankCost own{.waited_ns = 80 * kMs, .longest_ns = 80 * kMs, .longest_peer = 1};
  ASSERT_FALSE(other.tell(4, {.waited_ns = 80 * kMs, .rank = 1}, context));
  EXPECT_EQ(first.cost_of_step(1, own).wire_ns, 0);
  ASSERT_FALSE(other.tell(2, {.waited_ns = 80 * kMs, .rank = 0}, context));
  EXPECT_EQ(first.cost_of_step(2, own).wire_ns, 0);
}

INSTANTIATE_TEST_SUITE_P(Links, StepWordsOver, testing::Bool(),
                         [](const auto& posted) { return posted.param ? "posted" : "direct"; });

std::set<int> threads() {
  std::set<int> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    ids.insert(std::stoi(entry.path().filename()));
  return ids;
}

// Steps over a real loop until `hinder` has ended, and the longest of what they lost.
template <typename Hinder>
StepCost most_lost(RaggedRunner& runner, const Hinder& hinder) {
  Sequence s{.slot = 0, .tokens = std::vector<int32_t>(60, 1)};
  int32_t next_page = 0;
  StepCost most;
  std::atomic<bool> done{false};
  std::jthread other([&] {
    hinder();
    done = true;
  });
  while (!done) {
    if (s.cached == 60) s.cached = 0;  // over the same pages again
    StepDescriptor step;
    add_chunk(step, s, 30, runner.limits().page_size, next_page, false, 0);
    runner.post(step);
    const StepCost cost = wait_for(runner).cost;
    if (cost.lost_ns > most.lost_ns) most.lost_ns = cost.lost_ns, most.lost_rank = cost.lost_rank;
    if (cost.late_ns > most.late_ns) most.late_ns = cost.late_ns, most.late_rank = cost.late_rank;
  }
  return most;
}

// A signal whose handler sleeps is to one thread what SIGSTOP is to all.
TEST(StepCost, AThreadThatIsStoppedIsALateRank) {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {
    const timespec time{0, 150 * kMs};
    ::nanosleep(&time, nullptr);
  };
  ::sigaction(SIGUSR2, &action, &before);
  RunnerSetup setup;
  setup.ranks = 2;
  setup.options.threads = 2;
  const auto runner = make_runner(llama_tokens(), setup);
  const auto stop_each = [&] {
    for (const int id : threads()) {  // some of them compute; an earlier test's pool may be among these
      if (id == ::getpid() || id == ::gettid()) continue;
      ::syscall(SYS_tgkill, ::getpid(), id, SIGUSR2);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  };
  StepCost most;  // a stop may hide behind a core that is lost at the same time
  for (int tries = 0; tries < 8 && most.late_ns <= 80 * kMs; ++tries) most = most_lost(*runner, stop_each);
  ::sigaction(SIGUSR2, &before, nullptr);
  EXPECT_GT(most.late_ns, 80 * kMs);
  EXPECT_TRUE(most.late_rank == 0 || most.late_rank == 1) << most.late_rank;
}

TEST(StepCost, AThreadWhoseCoreIsTakenLosesIt) {
  RunnerSetup setup;
  setup.options.threads = 1;
  const auto runner = make_runner(llama_tokens(), setup);
  const StepCost most = most_lost(*runner, [] {
    std::vector<std::jthread> thieves;  // two for each core, so that one has company wherever it runs
    const int count = 2 * static_cast<int>(std::thread::hardware_concurrency());
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
    for (int i = 0; i < count; ++i)
      thieves.emplace_back([end] {
        while (std::chrono::steady_clock::now() < end) continue;
      });
  });
  EXPECT_GT(most.lost_ns, kMs / 2);
  EXPECT_EQ(most.lost_rank, 0);
}

}  // namespace
}  // namespace ark::test
