#include "server/schedule/scheduler.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "tests/fixtures.h"
#include "tests/server/schedule/requests.h"

namespace ark::schedule {
namespace {

using namespace std::chrono_literals;
using test::collect, test::expected_outcome, test::FakeRunner, test::Outcome, test::random_request,
    test::small_limits;

TEST(Scheduler, OneRequestGetsItsTokensAndThePromptsLogprobs) {
  FakeRunner runner(small_limits());
  Scheduler scheduler(runner, {});
  GenerateRequest request{.prompt = {3, 1, 4, 1, 5}, .max_tokens = 7, .prompt_logprobs = true};
  const Outcome got = collect(*scheduler.submit(request));
  EXPECT_EQ(got.how, Finish::kLength);
  EXPECT_EQ(got.tokens, expected_outcome(request).tokens);
  EXPECT_EQ(got.prompt, (std::vector<int32_t>{1, 4, 1, 5}));
}

// Many random requests over few pages: batching, chunking, preemption, sharing, drafts, goals and joules change
// nothing, and no page is lost. ARK_FULL=1: ten thousand schedules.
TEST(Scheduler, RandomLoadWithPreemptionGivesEveryoneTheTokensTheyGetAlone) {
  const int cases = test::rounds(80, 10'000);
  int64_t preemptions = 0, hits = 0, accepted = 0, wrong = 0;
  for (int seed = 0; seed < cases; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    RunnerLimits limits = small_limits();
    limits.max_tokens = 1 + static_cast<int32_t>(random() % 20);
    limits.max_rows = 1 + static_cast<int32_t>(random() % 6);
    limits.max_slots = 1 + static_cast<int32_t>(random() % 5);
    limits.depth = 1 + static_cast<int32_t>(random() % 3);
    limits.pages = 16 + static_cast<int32_t>(random() % 8);
    limits.processors = 1 + static_cast<int32_t>(random() % 4);
    FakeRunner runner(limits);
    const auto joules = [sum = 0.0]() mutable -> std::optional<double> { return sum += 0.01; };
    Scheduler scheduler(runner, {.prefix_cache = seed % 4 != 0,
                                 .slo_itl = seed % 3 == 0   ? -1
                                            : seed % 3 == 1 ? 0
                                                            : 1e-6,
                                 .shortest_first = seed % 2 != 0,
                                 .max_drafts = seed % 5 != 0 ? 1 + static_cast<int32_t>(random() % 15) : 0,
                                 .slo_ttft = seed % 7 < 3   ? 0
                                             : seed % 7 < 5 ? 1e-6
                                                            : 0.001,
                                 .economy = {seed % 6 == 0 ? 0.5 : 0, joules}});
    std::vector<std::pair<GenerateRequest, std::shared_ptr<Ticket>>> all;
    for (int i = 0; i < 30; ++i) {
      GenerateRequest request = random_request(random);
      all.emplace_back(request, scheduler.submit(request));
      if (random() % 5 == 0) all.back().second->cancel();
    }
    for (auto& [request, ticket] : all) {
      const bool cancelled = ticket->cancelled();
      const Outcome got = collect(*ticket);
      const Outcome expected = expected_outcome(request);
      if (cancelled && got.how == Finish::kCancelled) continue;
      ASSERT_EQ(got.how, expected.how) << "seed " << seed;
      ASSERT_EQ(got.tokens, expected.tokens) << "seed " << seed;
      ASSERT_EQ(got.prompt, expected.prompt) << "seed " << seed;
    }
    ASSERT_TRUE(scheduler.drain(20s));
    EXPECT_EQ(scheduler.stats().pages_held, 0);
    EXPECT_EQ(scheduler.stats().running, 0);
    EXPECT_TRUE(seed % 4 != 0 || scheduler.stats().prefix_hits == 0);
    preemptions += scheduler.stats().preemptions;
    hits += scheduler.stats().prefix_hits;
    accepted += scheduler.stats().accepted_tokens;
    wrong += scheduler.stats().draft_tokens - scheduler.stats().accepted_tokens;
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(hits, 5 * cases);
  EXPECT_GT(accepted, cases / 4);
  EXPECT_GT(wrong, cases / 16);  // 0 of the eight cases that threads_test has time for
}

// One server's life: its cache, its slots and its clients' accounts go on from one request to the next. That no page is
// lost or held by nobody is checked after each step, and fails all. ARK_FULL=1: twenty thousand requests.
TEST(Scheduler, ALongLifeLosesNoPageAndNobody) {
  const int requests = test::rounds(2'000, 20'000);
  constexpr std::size_t kAtOnce = 12;
  std::mt19937 random(5);
  FakeRunner runner(small_limits());
  Scheduler scheduler(runner, {});
  std::deque<std::pair<GenerateRequest, std::shared_ptr<Ticket>>> all;
  int cancelled = 0;
  for (int i = 0; i < requests || !all.empty(); ++i) {
    if (i < requests) {
      GenerateRequest request = random_request(random);
      all.emplace_back(request, scheduler.submit(request));
      if (random() % 5 == 0) all[random() % all.size()].second->cancel();
      if (all.size() < kAtOnce) continue;
    }
    const auto [request, ticket] = std::move(all.front());
    all.pop_front();
    const Outcome got = collect(*ticket);
    if (ticket->cancelled() && got.how == Finish::kCancelled && ++cancelled) continue;
    const Outcome expected = expected_outcome(request);
    ASSERT_EQ(got.how, expected.how) << "request " << i << ' ' << scheduler.failure();
    ASSERT_EQ(got.tokens, expected.tokens) << "request " << i;
    ASSERT_EQ(got.prompt, expected.prompt) << "request " << i;
  }
  ASSERT_TRUE(scheduler.drain(20s));
  const SchedulerStats stats = scheduler.stats();
  EXPECT_EQ(stats.pages_held, 0);
  EXPECT_GT(cancelled, requests / 20);
  EXPECT_GT(stats.preemptions, requests / 20);
  EXPECT_GT(stats.prefix_hits, 0);
}

TEST(Scheduler, RefusesWhatCanNeverRunAndWhatDoesNotFitTheQueue) {
  RunnerLimits limits = small_limits();
  FakeRunner runner(limits);
  Scheduler scheduler(runner, {.max_queue = 2});
  EXPECT_THROW(scheduler.submit({.prompt = {}}), Error);
  EXPECT_THROW(scheduler.submit({.prompt = {50}}), Error);
  EXPECT_THROW(scheduler.submit({.prompt = {-1}}), Error);
  EXPECT_THROW(scheduler.submit({.prompt = std::vector<int32_t>(60, 1), .max_tokens = 5}), Error);
  int exhausted = 0;
  std::vector<std::shared_ptr<Ticket>> tickets;
  for (int i = 0; i < 200; ++i) try {
      tickets.push_back(scheduler.submit({.prompt = {1}, .max_tokens = 40}));
    } catch (const Error& e) {
      exhausted += e.code() == Code::kExhausted;
    }
  EXPECT_GT(exhausted, 0);
  for (auto& t : tickets) EXPECT_EQ(collect(*t).how, Finish::kLength);
}

TEST(Scheduler, AFailingRunnerFailsEveryRequestAndSaysWhy) {
  FakeRunner runner(small_limits());
  runner.fail_at(5);
  Scheduler scheduler(runner, {});
  const auto a = scheduler.submit({.prompt = {1, 2}, .max_tokens = 30});
  try {
    const auto b = scheduler.submit({.prompt = {3}, .max_tokens = 30});
    EXPECT_EQ(collect(*b).how, Finish::kFailed);
  } catch (const Error& e) {  // on a busy machine the runner may have failed by now
    EXPECT_STREQ(e.what(), "rank 1 died");
  }
  EXPECT_EQ(collect(*a).how, Finish::kFailed);
  EXPECT_STREQ(a->error().what(), "rank 1 died");
  EXPECT_THROW(scheduler.submit({.prompt = {1}}), Error);
  EXPECT_EQ(scheduler.failure(), "rank 1 died");
}

TEST(Scheduler, ASequenceWithoutFiniteLogitsFailsAlone) {
  FakeRunner runner(small_limits());
  runner.poison(9);
  Scheduler scheduler(runner, {});
  const auto bad = scheduler.submit({.prompt = {1, 9}, .max_tokens = 30});
  const auto good = scheduler.submit({.prompt = {3}, .max_tokens = 5});
  EXPECT_EQ(collect(*bad).how, Finish::kFailed);
  EXPECT_EQ(bad->error().code(), Code::kBadModel);
  EXPECT_EQ(collect(*good).how, Finish::kLength);
  EXPECT_EQ(scheduler.stats().nonfinite, 1);
  EXPECT_EQ(scheduler.failure(), "");
}

TEST(Scheduler, TokensThatTheEmbeddingHasNoRowForAreRefused) {
  RunnerLimits limits = small_limits();
  limits.embedded = 2;
  FakeRunner runner(limits);
  Scheduler scheduler(runner, {});
  EXPECT_THROW(scheduler.submit({.prompt = {2}}), Error);
  const auto sampled = scheduler.submit({.prompt = {1}, .max_tokens = 30});  // some other token comes soon
  EXPECT_EQ(collect(*sampled).how, Finish::kFailed);
  EXPECT_NE(std::string(sampled->error().what()).find("out of data bounds"), std::string::npos);
}

TEST(Scheduler, DrainFinishesWhatRunsAndRefusesNewRequests) {
  FakeRunner runner(small_limits());
  Scheduler scheduler(runner, {});
  auto ticket = scheduler.submit({.prompt = {1}, .max_tokens = 20});
  EXPECT_TRUE(scheduler.drain(20s));
  EXPECT_THROW(scheduler.submit({.prompt = {1}}), Error);
  EXPECT_EQ(collect(*ticket).tokens.size(), 20u);
}

// Notes what it is given of each sequence at once: [tokens before, tokens].
class NotesParts : public FakeRunner {
 public:
  using FakeRunner::FakeRunner;
  uint64_t post(const StepDescriptor& step) override {
    for (const StepSequence& s : step.sequences) parts.emplace_back(s.kv_length, s.count);
    return FakeRunner::post(step);
  }
  std::vector<std::pair<int32_t, int32_t>> parts;
};

TEST(Scheduler, GivesPromptsWholeToRunnersThatPartNone) {
  RunnerLimits limits = small_limits();
  limits.parts_prompts = limits.shares_pages = 0;
  limits.max_tokens = limits.max_rows = limits.max_length + limits.max_slots, limits.pages = 200;
  NotesParts runner(limits);
  std::vector<int32_t> sizes = {3, 40, 17, 58, 25, 1, 58, 30};
  {
    Scheduler scheduler(runner, {.max_batched_tokens = 4, .slo_itl = 1e-9});
    std::vector<std::pair<GenerateRequest, std::shared_ptr<Ticket>>> all;
    for (const int32_t size : sizes) {
      GenerateRequest request{.prompt = std::vector<int32_t>(static_cast<std::size_t>(size), size % 7)};
      request.max_tokens = 6;
      request.prompt_logprobs = size == 58;
      all.emplace_back(request, scheduler.submit(request));
    }
    for (auto& [request, ticket] : all) EXPECT_EQ(collect(*ticket).tokens, expected_outcome(request).tokens);
  }
  std::vector<int32_t> read;
  for (const auto& [before, count] : runner.parts) {
    if (before == 0) {
      read.push_back(count);
    } else {
      EXPECT_EQ(count, 1);
    }
  }
  std::ranges::sort(sizes);
  std::ranges::sort(read);
  EXPECT_EQ(read, sizes);
}

}  // namespace
}  // namespace ark::schedule
