#include "dma/wait.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <thread>
#include <utility>
#include <vector>

#include "base/machine.h"
#include "dma/counter.h"
#include "dma/foresight.h"
#include "dma/wake_count.h"

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

TEST(Wait, NoWakeIsLostByWhoSleepsForMoreThanTheNextRaise) {
  Counter64 counter, turns;
  constexpr uint64_t kTurns = 2000, kSleepers = 3;
  const WaitContext sleeps{nullptr, Deadline::after(std::chrono::seconds(60)), {0}};
  std::vector<std::jthread> others;
  for (uint64_t each = 1; each <= kSleepers; ++each) {
    others.emplace_back([&, each] {  // each is woken by raises that others await
      for (uint64_t turn = 0; turn < kTurns; ++turn) {
        if (wait_reached(counter, turn * kSleepers + each, {}, sleeps)) return;
        turns.raise();
      }
    });
  }
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t turn = 0; turn < kTurns; ++turn) {
    for (uint64_t each = 0; each < kSleepers; ++each) counter.raise();
    ASSERT_FALSE(wait_reached(turns, (turn + 1) * kSleepers, {}, sleeps));
  }
  // As above; each turn waits for its slowest sleeper.
  EXPECT_LT(seconds_since(start), 10.0);
}

TEST(Wait, ASleepCostsOneWakeHoweverOftenTheCounterIsRaised) {
  Counter64 counter;
  counter.raise();
  const uint64_t before = wakes_so_far();
  counter.raise();
  EXPECT_EQ(wakes_so_far(), before) << "nobody sleeps";
  counter.asleep.store(1);  // somebody who has been woken, and does not run yet, has not set it again
  for (int i = 0; i < 1000; ++i) counter.raise();
  EXPECT_EQ(wakes_so_far(), before + 1);
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

constexpr int64_t kUs = 1'000;

// Works and waits by turns at one place; nanoseconds.
struct Foreseen {
  Foresight foresight{1};
  int64_t now = 5'000 * kUs;
  Foreseen() { foresight.begin(now); }
  int64_t nap_after(int64_t work) { return foresight.nap(0, now += work); }
  void turn(int64_t work, int64_t wait) {
    nap_after(work);
    const int64_t began = std::exchange(now, now + wait);
    foresight.took(0, began, now);
  }
};

TEST(Foresight, NapsEndShortlyBeforeWhatIsAwaited) {
  Foreseen f;
  for (int i = 0; i < 30; ++i) f.turn(500 * kUs, 300 * kUs);
  const int64_t nap = f.nap_after(500 * kUs);
  EXPECT_LT(nap, 260 * kUs);  // nobody knows yet how late it wakes
  EXPECT_GT(nap, 200 * kUs);
  EXPECT_EQ(f.nap_after(0), nap);
  // A part of the work before: a step with more tokens, and one with fewer.
  EXPECT_GT(f.nap_after(1'500 * kUs), 3 * nap);
  f.turn(0, 0);
  EXPECT_EQ(f.nap_after(100 * kUs), 0) << "60 us are not worth it";
  EXPECT_LE(f.nap_after(3'600'000'000 * kUs), 20'000 * kUs)
      << "an abort is seen as soon as by other sleepers";
}

TEST(Foresight, NoNapsWhereNoneAreWanted) {
  Foreseen f;
  f.foresight = Foresight(1, false);
  f.foresight.begin(f.now);
  for (int i = 0; i < 30; ++i) f.turn(500 * kUs, 300 * kUs);
  EXPECT_EQ(f.nap_after(500 * kUs), 0);
}

TEST(Foresight, NapsOnlyWhereWaitsAreLongEachTime) {
  Foreseen mixed, even;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(mixed.nap_after(500 * kUs), 0);
    i % 2 ? mixed.foresight.was_brief(0) : mixed.turn(0, 400 * kUs);
    EXPECT_EQ(even.nap_after(500 * kUs), 0);
    even.turn(0, 20 * kUs);
  }
  // From one step to the next all is otherwise: some naps are too long, then there are none.
  Foreseen changed;
  for (int i = 0; i < 30; ++i) changed.turn(500 * kUs, 300 * kUs);
  int naps = 0;
  for (int i = 0; i < 30; ++i) {
    naps += changed.nap_after(500 * kUs) > 0;
    changed.foresight.was_brief(0);
    changed.foresight.begin(changed.now);
  }
  EXPECT_GE(naps, 1);
  EXPECT_LE(naps, 3);
}

TEST(Foresight, LateTimersMakeNapsShorterUntilThatIsForgotten) {
  Foreseen f;
  for (int i = 0; i < 40; ++i) f.turn(500 * kUs, 240 * kUs);
  const auto after = [&](int64_t late) {
    for (int i = 0; i < 80; ++i) f.foresight.woke_late(late);
    return f.nap_after(500 * kUs);
  };
  const int64_t early = after(10 * kUs);
  f.now -= 500 * kUs;
  EXPECT_NEAR(static_cast<double>(early - after(100 * kUs)), 90e3, 1e3);
  f.now -= 500 * kUs;
  EXPECT_EQ(after(3'600'000'000 * kUs), 0);
  int tries = 1;
  for (; f.nap_after(0) == 0; ++tries) ASSERT_LT(tries, 60);
  EXPECT_GT(tries, 3);
}

TEST(Foresight, ALongWaitCostsNoProcessorTime) {
  Counter64 counter;
  Foresight foresight(1);
  foresight.begin(steady_ns() - 1'000 * kUs);
  for (int i = 0; i < 40; ++i) foresight.took(0, 0, 100), foresight.begin(0);  // parts of a microsecond
  WaitMeter meter;
  const WaitContext spins{nullptr, Deadline::never(), {UINT32_MAX}, &meter};
  std::jthread other([&] {
    detail::blind_sleep(20'000'000);
    counter.raise();
  });
  foresight.begin(steady_ns() - 400'000 * kUs);  // a tenth: 40 ms, of which a nap takes 20
  const double before = cpu_seconds();
  EXPECT_FALSE(wait_foreseen(counter.reached(1), {}, spins, foresight, 0));
  EXPECT_LT(cpu_seconds() - before, 0.010);
  EXPECT_GE(meter.sleeps, 1);
}

TEST(SpinPolicy, IsTinyWhenThereAreMoreThreadsThanCpus) {
  const int cpus = ark::available_cpus();
  EXPECT_LE(SpinPolicy::adapted(cpus + 1).spins, 32u);
  EXPECT_LE(SpinPolicy::adapted(cpus).spins, SpinPolicy::adapted(cpus - 1).spins);
}

}  // namespace
}  // namespace ark::dma
