// Who took a request's time: rules, records of scripted lives, and the scheduler over a runner that is hindered.
#include "server/schedule/blame.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "server/schedule/scheduler.h"
#include "tests/server/schedule/requests.h"

namespace ark::schedule {
namespace {

using namespace std::chrono_literals;
using Clock = StepFacts::Clock;

StepFacts step_of(std::chrono::nanoseconds time, int32_t decodes, int32_t prompts, double alone = 0,
                  StepCost cost = {}) {
  return {Clock::time_point(1s), Clock::time_point(1s) + time, decodes, prompts, 0, alone, cost};
}

TEST(Blame, OfADecodeBesidePromptsTheRestIsTheirs) {
  const Shares shares = shares_of(step_of(10ms, 4, 100, 0.004), {});
  EXPECT_EQ(shares[Cause::kTokens], 4'000'000);
  EXPECT_EQ(shares[Cause::kOthersPrompts], 6'000'000);
  EXPECT_EQ(named(shares), Cause::kOthersPrompts);
}

TEST(Blame, APromptHasItsPartOfTheTokensAndWhatIsComputedAgainIsForAReason) {
  const Shares shares =
      shares_of(step_of(10ms, 4, 100, 0.004), {.prompt = 50, .again = 25, .redo = Cause::kPages});
  EXPECT_EQ(shares[Cause::kPrompt], 1'500'000);
  EXPECT_EQ(shares[Cause::kPages], 1'500'000);
  EXPECT_EQ(shares[Cause::kOthersPrompts], 3'000'000);
  EXPECT_EQ(shares[Cause::kOthersStreams], 4'000'000);
}

TEST(Blame, WhatHinderedAStepIsTakenOffFirstAndNeverMoreThanItTook) {
  const Shares some = shares_of(step_of(10ms, 1, 0, 0.004, {.lost_ns = 3'000'000, .late_ns = 2'000'000}), {});
  EXPECT_EQ(some[Cause::kLostCore], 3'000'000);
  EXPECT_EQ(some[Cause::kLateRank], 2'000'000);
  EXPECT_EQ(some[Cause::kTokens], 5'000'000);
  const Shares all = shares_of(step_of(10ms, 1, 0, 0, {.lost_ns = 90'000'000, .wire_ns = -5}), {});
  EXPECT_EQ(all[Cause::kLostCore], 10'000'000);
  EXPECT_EQ(all.sum(), 10'000'000);
}

TEST(Blame, AWaitIsOthersStepsAndTheServersOwn) {
  Shares steps;
  steps[Cause::kQueue] = 6, steps[Cause::kLostCore] = 2;
  EXPECT_EQ(shares_of_wait(10, steps, false)[Cause::kServer], 2);
  EXPECT_EQ(shares_of_wait(10, steps, true)[Cause::kPages], 6);
  EXPECT_EQ(shares_of_wait(4, steps, false)[Cause::kQueue], 3);  // it came while they were computed
  EXPECT_EQ(shares_of_wait(0, steps, false).sum(), 0);
}

TEST(Blame, TheOwnWorkIsNamedWhereNoOtherTookATenth) {
  Shares shares;
  shares[Cause::kTokens] = 91, shares[Cause::kQueue] = 9;
  EXPECT_EQ(named(shares), Cause::kTokens);
  shares[Cause::kTokens] = 90, shares[Cause::kQueue] = 10;
  EXPECT_EQ(named(shares), Cause::kQueue);
  EXPECT_TRUE(named(Shares{}) == Cause::kPrompt || named(Shares{}) == Cause::kTokens);
}

TEST(Blame, EveryMomentOfAStepIsSomebodysWhateverTheCosts) {
  std::mt19937 random(3);
  const auto any = [&](int64_t most) { return static_cast<int64_t>(random()) % most; };
  for (int i = 0; i < 20'000; ++i) {
    const auto decodes = static_cast<int32_t>(any(3)), prompts = static_cast<int32_t>(any(200));
    const StepFacts step = step_of(std::chrono::nanoseconds(any(50'000'000)), decodes, prompts,
                                   static_cast<double>(any(30)) * 1e-3 * static_cast<double>(any(2)),
                                   {any(20'000'000) - 100, any(4'000'000), any(9'000'000), any(9'000'000)});
    const auto own = static_cast<int32_t>(any(prompts + 1));
    const Shares shares = shares_of(step, {own, own / 3, Cause::kRestart, false});
    ASSERT_EQ(shares.sum(), step.ns());
    for (const int64_t ns : shares.ns) ASSERT_GE(ns, 0);
    ASSERT_EQ(shares_of_waiting(step).sum(), step.ns());
  }
}

// A life of any length and kind is told without a gap, in as much room, and its shares add up to its time.
TEST(Record, TellsAWholeLifeInBoundedRoom) {
  std::mt19937 random(5);
  for (int life = 0; life < 50; ++life) {
    Ledger ledger;
    Clock::time_point now(1s);
    const auto others = [&](int count) {
      for (; count > 0; --count) {
        const auto begin = now + std::chrono::microseconds(random() % 50);
        now = begin + std::chrono::microseconds(random() % 9000);
        ledger.add({begin, now, 1, static_cast<int32_t>(random() % 50), 0, 0.001, {}});
      }
    };
    others(3);
    const Clock::time_point arrival = now - 1ms;
    Record record({.id = "a"}, 10, arrival);
    record.begin(ledger);
    const int steps = static_cast<int>(random() % 1000);
    for (int i = 0; i < steps; ++i) {
      others(random() % 4 ? 0 : static_cast<int>(random() % 3));
      const bool is_prompt = random() % 5 == 0;
      const auto begin = now + std::chrono::microseconds(random() % 3000);
      now = begin + std::chrono::microseconds(random() % 9000);
      ledger.add({begin, now, is_prompt ? 0 : 1, is_prompt ? 20 : 0, 0, 0.001, {.lost_ns = 1000}});
      record.step(ledger, {is_prompt ? 20 : 0, 0, Cause::kPages, random() % 9 == 0});
      if (!is_prompt) record.token(now);
    }
    now += 2ms;
    record.finish(ledger, now);
    record.sent(now + 5ms, 4ms);
    ASSERT_EQ(record.total.sum(), record.total_ns());
    ASSERT_EQ(record.to_first.sum(), record.first_ns());
    ASSERT_EQ(record.pause.sum(), record.pause_ns);
    EXPECT_EQ(record.total[Cause::kReader], 4'000'000);
    ASSERT_LE(record.spans.size(), Record::kSpans);
    ASSERT_EQ(record.spans.capacity(), Record::kSpans);
    Shares all;
    int64_t at = 0, told = 0;
    for (const Span& span : record.spans) {
      ASSERT_EQ(span.begin_ns, at);
      at = span.end_ns;
      told += span.steps;
      ASSERT_EQ(span.shares.sum(), span.end_ns - span.begin_ns);
      all.add(span.shares);
    }
    EXPECT_EQ(at, record.total_ns());
    EXPECT_EQ(told, steps);
    EXPECT_EQ(all.ns, record.total.ns);
  }
}

// The fake runner with steps that take time, and what is wrong with them.
class HinderedRunner : public test::FakeRunner {
 public:
  using FakeRunner::FakeRunner;
  std::chrono::microseconds each_token{20};
  StepCost cost;  // of each step; it takes so much longer

  uint64_t post(const StepDescriptor& step) override {
    tokens_.push_back(step.tokens.size());
    return FakeRunner::post(step);
  }
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override {
    auto result = FakeRunner::poll(timeout);
    if (!result) return result;
    std::this_thread::sleep_for(
        static_cast<int>(tokens_.front()) * each_token +
        std::chrono::nanoseconds(cost.lost_ns + cost.faulted_ns + cost.late_ns + cost.wire_ns));
    tokens_.pop_front();
    result->cost = cost;
    return result;
  }

 private:
  std::deque<std::size_t> tokens_;
};

RunnerLimits limits() {
  RunnerLimits l = test::small_limits();
  l.max_tokens = 64, l.max_rows = 16, l.max_length = 512, l.pages = 512;
  return l;
}

// The records of requests that come one after the other, in the order in which they ended.
class Recorder {
 public:
  Recorder(StepRunner& runner, SchedulerOptions options)
      : scheduler_(runner, options, [this](std::shared_ptr<const Record> record) {
          std::lock_guard lock(mutex_);
          records_[record->origin.id] = std::move(record);
        }) {}
  std::shared_ptr<Ticket> submit(const char* id, int32_t prompt, int32_t tokens, int32_t first = 0) {
    GenerateRequest request;
    for (int32_t i = 0; i < prompt; ++i) request.prompt.push_back((first + i * i) % 50);
    request.max_tokens = tokens;
    request.origin.id = id;
    return scheduler_.submit(request);
  }
  SchedulerStats stats() const { return scheduler_.stats(); }
  // Once all tickets are dropped.
  std::shared_ptr<const Record> record(const std::string& id) {
    for (const auto end = Clock::now() + 10s; Clock::now() < end; std::this_thread::sleep_for(1ms)) {
      std::lock_guard lock(mutex_);
      if (const auto found = records_.find(id); found != records_.end()) return found->second;
    }
    return nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Record>> records_;
  Scheduler scheduler_;
};

// A busy machine may keep the scheduler's thread waiting as long as it likes, within steps and between them.
Cause named_in_steps(Shares shares) {
  shares[Cause::kServer] = shares[Cause::kLostCore] = 0;
  return named(shares);
}

// And its steps, which then took the request's own time.
Cause named_among_others(Shares shares) {
  shares[Cause::kPrompt] = shares[Cause::kTokens] = 0;
  return named_in_steps(shares);
}

TEST(Records, NameWhatHinderedTheSteps) {
  const struct {
    StepCost cost;
    Cause cause;
  } cases[] = {{{.lost_ns = 2'000'000, .lost_rank = 1}, Cause::kLostCore},
               {{.faulted_ns = 2'000'000}, Cause::kPageFaults},
               {{.late_ns = 2'000'000, .late_rank = 1}, Cause::kLateRank},
               {{.wire_ns = 2'000'000}, Cause::kWire}};
  for (const auto& [cost, cause] : cases) {
    HinderedRunner runner(limits());
    runner.cost = cost;
    Recorder recorder(runner, {.max_drafts = 0});
    test::collect(*recorder.submit("a", 5, 20));
    const auto record = recorder.record("a");
    ASSERT_TRUE(record);
    EXPECT_EQ(record->total.sum(), record->total_ns());
    for (Shares shares : {record->total, record->to_first, record->pause}) {
      // A busy machine may make them as long as it likes.
      shares[Cause::kPrompt] = shares[Cause::kTokens] = 0;
      if (cause != Cause::kLostCore) shares[Cause::kLostCore] = 0;
      shares[Cause::kServer] = 0;
      EXPECT_EQ(named(shares), cause) << text_of(named(shares)).name;
    }
    const int64_t before = cause == Cause::kLostCore ? 0 : record->total[Cause::kLostCore];  // taken first
    EXPECT_GE(record->total[cause] + before, 20 * 2'000'000);
    EXPECT_EQ(record->late_rank, cost.late_rank);
    const SchedulerStats stats = recorder.stats();
    const int64_t steps = stats.steps;
    const std::vector<int64_t> none, late{0, steps * cost.late_ns};
    EXPECT_EQ(stats.late_ns, cost.late_rank == 1 ? late : none) << "as often as there were steps";
    EXPECT_TRUE(cost.lost_rank != 1 || (stats.coreless_ns.size() == 2 && stats.coreless_ns[0] == 0 &&
                                        stats.coreless_ns[1] <= steps * cost.lost_ns));
    const bool is_own = record->lost_rank == -1 && record->total[Cause::kLostCore] > 20 * cost.lost_ns;
    EXPECT_TRUE(record->lost_rank == cost.lost_rank || is_own) << record->lost_rank;
  }
}

// Its runner is quick, but the thread that takes what comes of steps shares its core with others.
class CorelessRunner : public test::FakeRunner {
 public:
  using FakeRunner::FakeRunner;
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override {
    for (const auto end = Clock::now() + 1ms; Clock::now() < end;) {
    }
    auto result = FakeRunner::poll(timeout);
    if (result) result->cost = {.lost_ns = 1, .lost_rank = 1};  // far less
    return result;
  }
};

TEST(Records, NameTheCoreThatTheSchedulersThreadLacks) {
  if (!std::filesystem::exists("/proc/thread-self/schedstat"))
    GTEST_SKIP() << "the system counts no waits for cores";
  cpu_set_t all, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);  // also of the threads that it starts
  {
    CorelessRunner runner(limits());
    Recorder recorder(runner, {.max_drafts = 0});
    std::atomic<bool> stop = false;
    const auto spin = [&] {
      while (!stop) {
      }
    };
    std::thread thieves[] = {std::thread(spin), std::thread(spin)};
    test::collect(*recorder.submit("a", 5, 40));
    stop = true;
    for (std::thread& thief : thieves) thief.join();
    const auto record = recorder.record("a");
    EXPECT_TRUE(record && named(record->total) == Cause::kLostCore && record->lost_rank == -1);
  }
  ::sched_setaffinity(0, sizeof all, &all);
}

TEST(Records, NameTheOwnWorkWhereNothingIsInItsWay) {
  HinderedRunner runner(limits());
  runner.each_token = 100us;
  Recorder recorder(runner, {.max_drafts = 0});
  test::collect(*recorder.submit("long", 300, 1));
  test::collect(*recorder.submit("many", 1, 60));
  EXPECT_EQ(named_in_steps(recorder.record("long")->total), Cause::kPrompt);
  EXPECT_EQ(named_in_steps(recorder.record("many")->total), Cause::kTokens);
  EXPECT_EQ(recorder.record("many")->generated, 60);
}

TEST(Records, NameTheQueueAndOthersPrompts) {
  HinderedRunner runner(limits());
  runner.each_token = 100us;
  Recorder recorder(runner, {.max_sequences = 2, .slo_itl = -1, .max_drafts = 0});
  runner.allow(10);
  auto stream = recorder.submit("stream", 1, 450);
  std::vector<TokenEvent> events;
  while (events.size() < 10) stream->wait(events, 10ms);
  auto prompt = recorder.submit("prompt", 400, 4, 1);  // whole steps of 64 tokens
  runner.allow(14);                                    // two were on their way before it came
  while (events.size() < 14) stream->wait(events, 10ms);
  auto last = recorder.submit("last", 1, 2);  // no slot is free
  runner.allow(test::FakeRunner::kAllSteps);
  for (auto* ticket : {&stream, &prompt, &last}) {
    test::collect(**ticket);
    ticket->reset();
  }
  EXPECT_EQ(named_among_others(recorder.record("stream")->total), Cause::kOthersPrompts);
  EXPECT_EQ(named_among_others(recorder.record("last")->total), Cause::kQueue);
  EXPECT_GT(recorder.record("last")->to_first[Cause::kQueue], 20'000'000);
}

TEST(Records, NamePagesWhereTheyAreFew) {
  RunnerLimits few = limits();
  few.max_length = 128, few.pages = 40;  // 160 tokens
  HinderedRunner runner(few);
  runner.each_token = 50us;
  Recorder recorder(runner, {.prefix_cache = false, .max_drafts = 0});
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (const char* id : {"a", "b", "c"}) tickets.push_back(recorder.submit(id, 28, 90));
  for (auto& ticket : tickets) {
    test::collect(*ticket);
    ticket.reset();
  }
  const auto last = recorder.record("c");
  EXPECT_EQ(named_among_others(last->total), Cause::kPages) << text_of(named_among_others(last->total)).name;
  EXPECT_GT(last->preemptions, 0);
  EXPECT_LT(recorder.record("a")->total[Cause::kPages],
            last->total[Cause::kPages] / 4);  // until others gave theirs
}

TEST(Records, NameTheReaderAndWhoLeft) {
  HinderedRunner runner(limits());
  Recorder recorder(runner, {.max_drafts = 0});
  {
    const auto slow = recorder.submit("slow", 2, 4);
    test::collect(*slow);
    std::this_thread::sleep_for(30ms);
    slow->mark_sent(29ms);
    const auto gone = recorder.submit("gone", 2, 400);
    gone->cancel();
    test::collect(*gone);
  }
  EXPECT_EQ(named_among_others(recorder.record("slow")->total), Cause::kReader);
  EXPECT_STREQ(recorder.record("slow")->outcome, "length");
  EXPECT_STREQ(recorder.record("gone")->outcome, "cancelled");
}

}  // namespace
}  // namespace ark::schedule
