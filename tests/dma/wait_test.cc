#include "dma/wait.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <thread>

#include "base/machine.h"
#include "dma/counter.h"

namespace ark::dma {
namespace {

using std::chrono::milliseconds;

double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Counter, ComparesAcrossItsWrap) {
  Counter32 phase;
  phase.raise(UINT32_MAX - 2);
  EXPECT_TRUE(phase.has_reached(UINT32_MAX - 2));
  EXPECT_FALSE(phase.has_reached(UINT32_MAX));
  EXPECT_FALSE(phase.has_reached(3));
  phase.raise(6);
  EXPECT_EQ(phase.load(), 3u);
  EXPECT_TRUE(phase.has_reached(UINT32_MAX));
  EXPECT_TRUE(phase.has_reached(3));
  EXPECT_FALSE(phase.has_reached(4));
  Counter64 arrived;
  arrived.raise(UINT64_MAX);
  EXPECT_FALSE(arrived.has_reached(0));
  arrived.raise();
  EXPECT_TRUE(arrived.has_reached(0));
  EXPECT_TRUE(arrived.has_reached(UINT64_MAX));
}

TEST(Wait, FaultNamesPlaceAndFigures) {
  Counter32 phase;
  phase.raise(7);
  const WaitPoint at{.what = "phase counter", .rank = 1, .processor = 3, .phase = 12, .trip = 4};
  const Fault fault = wait_reached(phase, 9u, at, {nullptr, Deadline::after(milliseconds(1)), {}});
  EXPECT_EQ(fault.text(),
            "rank 1, processor 3, phase 12, trip 4: phase counter: deadline passed (saw 7, needed 9)");
}

TEST(Wait, ReadyWinsOverAbortAndDeadline) {
  AbortFlag abort;
  abort.raise(AbortReason::kShutdown);
  EXPECT_FALSE(wait_until([] { return true; }, {}, {&abort, Deadline::after(milliseconds(0)), {}}));
  EXPECT_EQ(wait_until([] { return false; }, {}, {&abort, Deadline::never(), {}}).kind, FaultKind::kAborted);
}

TEST(Wait, FirstAbortReasonStays) {
  AbortFlag abort;
  abort.raise(AbortReason::kDeadRank, 2);
  abort.raise(AbortReason::kShutdown);
  EXPECT_EQ(abort.reason(), AbortReason::kDeadRank);
  EXPECT_EQ(abort.rank(), 2);
  abort.clear();
  EXPECT_FALSE(abort.raised());
}

TEST(Wait, AnIdleWaitCostsNextToNoCpuAndIsWokenAtOnce) {
  Counter64 counter;
  std::chrono::steady_clock::time_point raised;
  std::jthread writer([&] {
    detail::blind_sleep(400'000'000);
    raised = std::chrono::steady_clock::now();
    counter.raise();
  });
  const double before = cpu_seconds();
  EXPECT_FALSE(wait_reached(counter, uint64_t{1}, {}, WaitContext{}));
  EXPECT_LT(cpu_seconds() - before, 0.1);
  EXPECT_LT(seconds_since(raised), 10);  // it may be asleep for ever; a busy machine is late
}

TEST(Wait, PollsWhatCannotWake) {
  std::atomic<int> value{0};
  std::jthread writer([&] {
    detail::blind_sleep(30'000'000);
    value.store(1, std::memory_order_release);
  });
  EXPECT_FALSE(wait_until([&] { return value.load(std::memory_order_acquire) == 1; }, {}, WaitContext{}));
}

TEST(Wait, AbortEndsASleepingWaitSoon) {
  Counter64 counter;
  AbortFlag abort;
  std::jthread aborter([&] {
    detail::blind_sleep(50'000'000);
    abort.raise(AbortReason::kShutdown);
  });
  const auto start = std::chrono::steady_clock::now();
  const Fault fault = wait_reached(counter, uint64_t{1}, {}, {&abort, Deadline::never(), {}});
  EXPECT_EQ(fault.kind, FaultKind::kAborted);
  EXPECT_LT(seconds_since(start), 10);
}

TEST(Wait, NoWakeIsLostInALongExchange) {
  Counter64 ping, pong;
  constexpr uint64_t kTurns = 5000;
  // At once to the futex.
  const WaitContext sleeps{nullptr, Deadline::after(std::chrono::seconds(60)), {0}};
  std::jthread other([&] {
    for (uint64_t turn = 1; turn <= kTurns; ++turn) {
      if (wait_reached(ping, turn, {}, sleeps)) return;
      pong.raise();
    }
  });
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t turn = 1; turn <= kTurns; ++turn) {
    ping.raise();
    ASSERT_FALSE(wait_reached(pong, turn, {}, sleeps));
  }
  // A lost wake costs a sleep slice of 20 ms: a few per cent of them would show.
  EXPECT_LT(seconds_since(start), 10.0);
}

TEST(Wait, WakesAcrossProcesses) {
  void* shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* counters = static_cast<Counter64*>(shared);
  const WaitContext sleeps{nullptr, Deadline::after(std::chrono::seconds(30)), {0}};
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool failed = bool(wait_reached(counters[0], uint64_t{1}, {}, sleeps));
    counters[1].raise();
    _exit(failed);
  }
  detail::blind_sleep(20'000'000);
  counters[0].raise();
  EXPECT_FALSE(wait_reached(counters[1], uint64_t{1}, {}, sleeps));
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  munmap(shared, 4096);
}

TEST(SpinPolicy, IsTinyWhenThereAreMoreThreadsThanCpus) {
  const int cpus = ark::available_cpus();
  EXPECT_LE(SpinPolicy::adapted(cpus + 1).spins, 32u);
  EXPECT_LE(SpinPolicy::adapted(cpus).spins, SpinPolicy::adapted(cpus - 1).spins);
}

}  // namespace
}  // namespace ark::dma
