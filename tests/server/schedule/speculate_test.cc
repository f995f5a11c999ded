// Drafts: what is guessed, when it pays, and that answers stay what they are whatever is guessed.
#include "server/schedule/speculate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "server/schedule/scheduler.h"
#include "tests/fixtures.h"
#include "tests/server/schedule/requests.h"

namespace ark::schedule::speculation {
namespace {

using namespace std::chrono_literals;
using test::collect, test::expected_outcome, test::FakeRunner;

std::vector<int32_t> any_tokens(std::mt19937& random, int32_t count, int32_t vocabulary = 1000) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(vocabulary)));
  return tokens;
}

// How many of `text`'s tokens, generated one by one behind `prompt`, were the first guess.
int32_t guessed(Lookup& lookup, std::vector<int32_t> prompt, const std::vector<int32_t>& text) {
  int32_t right = 0;
  const auto size = static_cast<int32_t>(prompt.size());
  lookup.follow(prompt, size);
  for (const int32_t token : text) {
    right += lookup.token(0) == token;
    prompt.push_back(token);
    lookup.follow(prompt, size);
  }
  return right;
}

class Guess : public testing::Test {
 protected:
  std::mt19937 random{5};
};

TEST_F(Guess, ATextThatCameBeforeIsFoundAfterTwoTokensHoweverLong) {
  for (const int32_t size : {50, 3000}) {
    Lookup lookup({});
    EXPECT_EQ(guessed(lookup, any_tokens(random, size, 1 << 20), any_tokens(random, 40, 1 << 20)), 0);
    std::vector<int32_t> prompt = any_tokens(random, size, 1 << 20);
    const std::vector<int32_t> text(prompt.begin() + 5, prompt.begin() + 45);
    Lookup again({});
    EXPECT_GE(guessed(again, prompt, text), 37);
    EXPECT_EQ(again.token(0), prompt[45]);
    EXPECT_EQ(again.token(4), prompt[49]);
  }
}

TEST_F(Guess, WhatRepeatsItselfGoesOn) {
  Lookup lookup({});
  lookup.follow(std::vector<int32_t>{9, 1, 2, 3, 1, 2, 3, 1, 2}, 2);
  for (int32_t i = 0; i < 9; ++i) EXPECT_EQ(lookup.token(i), (i + 2) % 3 + 1);
}

TEST_F(Guess, TheExpectedTextIsTheFirstGuessAndFoundAgainBehindEdits) {
  const std::vector<int32_t> expected = any_tokens(random, 400);
  std::vector<int32_t> text = expected;
  text[100] = 2000;  // replaced
  text.insert(text.begin() + 200, {2001, 2002, 2003});
  text.erase(text.begin() + 300, text.begin() + 310);
  Lookup lookup(expected);
  EXPECT_GE(guessed(lookup, any_tokens(random, 30), text), 393 - 3 * 4);
  EXPECT_EQ(lookup.token(0), Lookup::kNone);  // it is at its end
  EXPECT_FALSE(lookup.is_expected());
}

TEST_F(Guess, TheExpectedTextIsFoundBeforeTheSameInThePrompt) {
  const std::vector<int32_t> expected = any_tokens(random, 60);
  std::vector<int32_t> text = any_tokens(random, 100), prompt = text;
  prompt.insert(prompt.end(), expected.begin(), expected.end());
  text.insert(text.end(), expected.begin(), expected.begin() + 50);
  Lookup lookup(expected);
  EXPECT_GE(guessed(lookup, prompt, text), 140);
  EXPECT_TRUE(lookup.is_expected());
}

TEST_F(Guess, ChancesAreLearntFromGuessesThatNobodyActedOn) {
  const std::vector<int32_t> half = any_tokens(random, 3000, 2);  // any end came before, and says nothing
  Lookup poor({});
  guessed(poor, {0, 1}, half);
  EXPECT_LT(poor.chance(0), 0.75);
  Lookup sure({});
  guessed(sure, {0, 1}, std::vector<int32_t>(100, 7));
  EXPECT_GT(sure.chance(0), 0.95);
  EXPECT_GT(sure.chance(14), 0.95);
}

// Steps take as long as this machine's.
class TimedRunner : public FakeRunner {
 public:
  using FakeRunner::FakeRunner;
  uint64_t post(const StepDescriptor& step) override {
    ++steps;
    tokens += static_cast<int64_t>(step.tokens.size());
    sizes_.push_back(step.tokens.size());
    return FakeRunner::post(step);
  }
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override {
    if (!sizes_.empty()) {
      // What else a step takes is little beside it, also where a sanitizer slows that down.
      std::this_thread::sleep_for((2ms + sizes_.front() * each) * (test::is_sanitized() ? 4 : 1));
      sizes_.pop_front();
    }
    return FakeRunner::poll(timeout);
  }
  std::atomic<int64_t> steps{0}, tokens{0};
  std::chrono::microseconds each{50};

 private:
  std::deque<std::size_t> sizes_;
};

class Steps : public testing::Test {
 protected:
  static RunnerLimits limits() {
    RunnerLimits limits = test::small_limits();
    limits.max_tokens = limits.max_rows = 64, limits.max_length = 512, limits.pages = 512;
    return limits;
  }
  std::shared_ptr<Ticket> run(bool is_expected, int32_t max_drafts = kMostDrafts) {
    GenerateRequest request{.prompt = {1, 2, 3}, .max_tokens = 200, .max_drafts = max_drafts};
    request.prompt[0] = ++requests % 50;
    const test::Outcome expected = expected_outcome(request);
    if (is_expected) request.expected = expected.tokens;
    const auto ticket = scheduler.submit(request);
    EXPECT_EQ(collect(*ticket).tokens, expected.tokens);
    return ticket;
  }
  TimedRunner runner{limits()};
  Scheduler scheduler{runner, {}};
  int32_t requests = 0;
};

TEST_F(Steps, WhatIsExpectedTakesFewSteps) {
  const Ticket::Times times = run(true)->times();
  EXPECT_LT(runner.steps, 60);
  EXPECT_GT(times.drafts_right, 140);
  EXPECT_EQ(times.drafts_wrong, 0);
  SchedulerStats stats = scheduler.stats();  // told once a step is over, a moment after its tokens
  for (int i = 0; i < 1000 && stats.generated_tokens < 200; ++i, stats = scheduler.stats())
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(stats.accepted_tokens, times.drafts_right);
  EXPECT_EQ(stats.draft_tokens, times.drafts_right);
  EXPECT_EQ(stats.generated_tokens, 200);
  EXPECT_GT(stats.drafts * kMostDrafts, stats.draft_tokens - 1);
}

TEST_F(Steps, WhatDoesNotRepeatItselfIsComputedOnce) {
  runner.each = 400us;
  const Ticket::Times times = run(false)->times();
  EXPECT_GE(runner.steps, 200 - 20);
  EXPECT_LE(runner.tokens, 200 + 20);
  EXPECT_EQ(times.drafts_right + times.drafts_wrong, 0);  // which are of expected tokens only
}

TEST_F(Steps, NothingIsDraftedWhereTheRequestOrTheRunnerWantsNone) {
  run(true, 0);
  RunnerLimits unshared = limits();
  unshared.shares_pages = 0;
  FakeRunner plain(unshared);
  Scheduler other(plain, {});
  const GenerateRequest request{.prompt = {1}, .max_tokens = 50, .expected = std::vector<int32_t>(50, 1)};
  EXPECT_EQ(collect(*other.submit(request)).tokens, expected_outcome(request).tokens);
  for (const Scheduler* s : {&scheduler, &other}) EXPECT_EQ(s->stats().draft_tokens, 0);
}

// In virtual time: steps of streams alone take a second.
class Worth : public testing::Test {
 protected:
  static RunnerLimits limits() {
    RunnerLimits limits = test::small_limits();
    limits.max_tokens = limits.max_rows = 64, limits.max_length = 512, limits.pages = 64;
    return limits;
  }
  // A stream of whose next tokens the client is sure.
  void come() {
    auto s = std::make_shared<Sequence>();
    s->request.expected.assign(100, 1);
    s->request.max_tokens = 100;
    s->request.prompt = s->tokens = {2, 3};
    s->asked = 2, s->posted = 1;
    s->pages.push_back(state.pages.take());
    decoding.push_back(std::move(s));
  }
  void step(double seconds, int32_t drafts = 0) {
    const auto posted = now;
    now += std::chrono::duration_cast<Pace::Clock::duration>(std::chrono::duration<double>(seconds));
    state.pace.step_done({1, 0, posted, drafts}, now);
  }
  // Drafts of each, where one takes so many seconds.
  double drafts() {
    for (const auto& s : decoding) s->drafts.clear();
    const bool has_drafts = draft(state, decoding);
    std::size_t count = 0;
    for (const auto& s : decoding) count += s->drafts.size();
    EXPECT_EQ(has_drafts, count > 0);
    return static_cast<double>(count) / static_cast<double>(decoding.size());
  }
  double drafts_at(double each) {
    for (int i = 0; i < 8; ++i) step(1 + 10 * each, 10);
    step(1);
    return drafts();
  }
  SchedulerState state{limits(), {}};
  std::vector<std::shared_ptr<Sequence>> decoding;
  Pace::Clock::time_point now{std::chrono::seconds(1)};
};

TEST_F(Worth, TheDearerTheFewer) {
  come();
  EXPECT_EQ(drafts(), 0);  // nothing is known
  step(1);
  EXPECT_GT(drafts(), 0);
  EXPECT_EQ(drafts_at(0.001), kMostDrafts);
  EXPECT_GT(drafts_at(0.1), drafts_at(0.3));
  EXPECT_GT(drafts_at(0.3), 0);
  EXPECT_EQ(drafts_at(0.95), 0);
}

TEST_F(Worth, ManyStreamsShareAStep) {
  come();
  const double alone = drafts_at(0.1);
  for (int i = 0; i < 5; ++i) come();
  const double among = drafts_at(0.1);  // now more comes of a second without them
  EXPECT_LT(among, alone);
  for (int i = 0; i < 6; ++i) come();
  EXPECT_LT(drafts_at(0.1), among);
}

TEST_F(Worth, PricesAreLookedAtAgain) {
  come();
  EXPECT_EQ(drafts_at(0.95), 0);
  for (int i = 0; i < 5 * Pace::kForget; ++i) step(1);
  EXPECT_GT(drafts(), 0);
  EXPECT_GT(drafts_at(0.1), 0);
  for (int i = 0; i < Pace::kProbe; ++i) step(2, 10);
  EXPECT_EQ(drafts(), 0);  // to see what streams alone take
  step(1);
  EXPECT_GT(drafts(), 0);
}

TEST_F(Worth, WithStepsInFlightItIsOnlyTold) {
  come();
  step(1);
  state.flights.emplace_back();
  EXPECT_TRUE(draft(state, decoding));
  EXPECT_TRUE(decoding[0]->drafts.empty());
}

TEST_F(Worth, NobodyYieldsPagesForThem) {
  come();
  EXPECT_GT(drafts_at(0.01), 4);
  while (state.pages.obtainable() > 0) state.pages.take();
  EXPECT_EQ(drafts(), 0);
}

// Streams without others in line, so that there are drafts in most steps: right ones and wrong ones, with few pages,
// ends and cancels in their midst. What is published of them must be right: later prompts begin with it.
TEST(Speculation, RandomGuessesChangeNoToken) {
  const int cases = test::rounds(100, 10'000);
  int64_t right = 0, wrong = 0, preemptions = 0, hits = 0;
  for (int seed = 0; seed < cases; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    RunnerLimits limits = test::small_limits();
    limits.max_tokens = limits.max_rows = 8 + static_cast<int32_t>(random() % 60);
    limits.depth = 1 + static_cast<int32_t>(random() % 3);
    limits.pages = 16 + static_cast<int32_t>(random() % 20);
    FakeRunner runner(limits);
    Scheduler scheduler(runner, {.max_drafts = 1 + static_cast<int32_t>(random() % 15)});
    for (int wave = 0; wave < 6; ++wave) {
      std::vector<std::pair<GenerateRequest, std::shared_ptr<Ticket>>> all;
      for (unsigned i = 1 + random() % 4; i > 0; --i) {
        GenerateRequest request = test::random_request(random);
        request.prompt.resize(std::min<std::size_t>(request.prompt.size(), 1 + random() % 12));
        request.max_tokens = 64 - static_cast<int32_t>(request.prompt.size());
        request.expected = test::edited(expected_outcome(request).tokens, random);
        all.emplace_back(request, scheduler.submit(request));
        // A turn of a conversation: it finds the pages of the answer.
        if (random() % 2) {
          collect(*all.back().second);
          const std::vector<int32_t> answer = expected_outcome(request).tokens;
          request.prompt.insert(request.prompt.end(), answer.begin(), answer.end());
          if (request.prompt.size() > 60) request.prompt.resize(40 + random() % 20);
          request.max_tokens = 64 - static_cast<int32_t>(request.prompt.size());
          all.back() = {request, scheduler.submit(request)};
        }
        if (random() % 8 == 0) all.back().second->cancel();
      }
      for (auto& [request, ticket] : all) {
        const test::Outcome got = collect(*ticket), expected = expected_outcome(request);
        if (got.how == Finish::kCancelled) continue;
        ASSERT_EQ(got.how, expected.how) << "seed " << seed << ": " << ticket->error().what();
        ASSERT_EQ(got.tokens, expected.tokens) << "seed " << seed;
        ASSERT_EQ(got.prompt, expected.prompt) << "seed " << seed;
      }
    }
    ASSERT_TRUE(scheduler.drain(20s));
    const SchedulerStats stats = scheduler.stats();
    EXPECT_EQ(stats.pages_held, 0);
    right += stats.accepted_tokens, wrong += stats.draft_tokens - stats.accepted_tokens;
    preemptions += stats.preemptions, hits += stats.prefix_hits;
  }
  EXPECT_GT(right, 2 * cases);
  EXPECT_GT(wrong, 2 * cases);
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(hits, 10 * cases);
}

}  // namespace
}  // namespace ark::schedule::speculation
