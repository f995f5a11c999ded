// A draft model: what it guesses and reads, that wrong guesses and its loss change no token, and that it is given up
// where it does not help.
#include "server/schedule/drafter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "server/schedule/scheduler.h"
#include "tests/fixtures.h"
#include "tests/server/schedule/requests.h"

namespace ark::schedule {
namespace {

using namespace std::chrono_literals;
using test::collect, test::expected_outcome, test::FakeRunner;

RunnerLimits some_limits() {
  RunnerLimits limits = test::small_limits();
  limits.max_tokens = limits.max_rows = 64, limits.max_length = 512, limits.pages = 256;
  return limits;
}

// Counts what it reads; says something else than it should where `wrong` says so.
class DraftRunner : public FakeRunner {
 public:
  using FakeRunner::FakeRunner;
  uint64_t post(const StepDescriptor& step) override {
    ++steps;
    tokens += static_cast<int64_t>(step.tokens.size());
    return FakeRunner::post(step);
  }
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override {
    auto result = FakeRunner::poll(timeout);
    if (result) std::this_thread::sleep_for(time);
    if (result)
      for (RowResult& row : result->rows)
        if (wrong && wrong()) row.token = (row.token + 1) % limits().vocabulary;
    return result;
  }
  std::function<bool()> wrong;
  std::chrono::microseconds time{0};
  std::atomic<int64_t> steps{0}, tokens{0};
};

std::vector<int32_t> continued(std::vector<int32_t> text, int32_t count, int32_t vocabulary) {
  const std::size_t size = text.size();
  for (; count > 0; --count) text.push_back(FakeRunner::next(text, vocabulary));
  return {text.begin() + static_cast<std::ptrdiff_t>(size), text.end()};
}

TEST(Drafter, GuessesAsItsModelSamplesAndReadsWhatIsNewAlone) {
  const RunnerLimits limits = some_limits();
  DraftRunner runner(limits);
  Drafter drafter(runner);
  std::vector<std::vector<int32_t>> texts = {{1, 2, 3, 4, 5}, {7}};
  for (int round = 0; round < 6; ++round) {
    std::vector<Drafter::Question> questions;
    for (std::size_t i = 0; i < texts.size(); ++i)
      questions.push_back({static_cast<int32_t>(i), texts[i], {}, 4 - static_cast<int32_t>(i), {}});
    const int64_t before = runner.tokens;
    int32_t unread = 0;
    for (const auto& q : questions) unread += std::max(1, drafter.unread(q.slot, q.text));
    drafter.answer(questions);
    EXPECT_EQ(runner.tokens - before, unread + 3 + 2) << "tokens are read again";
    for (std::size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(questions[i].guesses, continued(texts[i], questions[i].most, limits.vocabulary));
      // So many of them were right; then the model samples something else.
      texts[i].insert(texts[i].end(), questions[i].guesses.begin(), questions[i].guesses.begin() + round % 3);
      texts[i].push_back(round % 2 ? 9 : continued(texts[i], 1, limits.vocabulary)[0]);
    }
  }
  EXPECT_FALSE(drafter.has_failed());
}

TEST(Drafter, LongTextsAreReadInPiecesBeforeAnythingIsGuessed) {
  DraftRunner runner(some_limits());
  Drafter drafter(runner);
  const std::vector<int32_t> text(150, 3);
  for (int call = 0; call < 3; ++call) {
    Drafter::Question question{0, text, {}, 2, {}};
    drafter.answer({&question, 1});
    EXPECT_EQ(question.guesses.size(), call < 2 ? 0u : 2u);
    EXPECT_EQ(drafter.unread(0, text), std::max(0, 150 - 64 * (call + 1)));
  }
  EXPECT_EQ(runner.tokens, 150 + 1);
}

TEST(Drafter, PagesGoToWhoIsAskedAbout) {
  RunnerLimits limits = some_limits();
  limits.pages = 12, limits.page_size = 4;
  DraftRunner runner(limits);
  Drafter drafter(runner);
  for (int32_t slot : {0, 1, 0, 1, 2}) {
    const std::vector<int32_t> text(30, 5 + slot);
    Drafter::Question question{slot, text, {}, 2, {}};
    drafter.answer({&question, 1});
    EXPECT_EQ(question.guesses, continued(text, 2, limits.vocabulary)) << slot;
  }
  // Both at once have not enough.
  const std::vector<int32_t> one(30, 1), two(30, 2);
  std::vector<Drafter::Question> both = {{0, one, {}, 2, {}}, {1, two, {}, 2, {}}};
  drafter.answer(both);
  EXPECT_EQ(both[0].guesses.size(), 2u);
  EXPECT_TRUE(both[1].guesses.empty());
}

TEST(Drafter, WhatItCannotHoldHasNoGuesses) {
  RunnerLimits limits = some_limits();
  limits.max_length = 20, limits.embedded = 50;
  DraftRunner runner(limits);
  Drafter drafter(runner);
  const std::vector<int32_t> longer(19, 1), unknown = {1, 50}, fine = {1, 49};
  std::vector<Drafter::Question> questions = {{0, longer, {}, 2, {}},
                                              {1, unknown, {}, 2, {}},
                                              {limits.max_slots, fine, {}, 2, {}},
                                              {2, fine, {}, 2, {}}};
  drafter.answer(questions);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(questions[i].guesses.empty()) << i;
  EXPECT_EQ(questions[3].guesses.size(), 2u);
}

// Steps of the model take a while, those of its draft model none.
class SlowRunner : public FakeRunner {
 public:
  SlowRunner(RunnerLimits limits, std::chrono::microseconds time) : FakeRunner(limits), time_(time) {}
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override {
    auto result = FakeRunner::poll(timeout);
    if (result) {
      std::this_thread::sleep_for(time_);
      ++steps;
    }
    return result;
  }
  std::atomic<int64_t> steps{0};

 private:
  const std::chrono::microseconds time_;
};

struct Served {
  // Long beside what a draft takes, also where a sanitizer slows that down.
  explicit Served(std::chrono::microseconds time = test::is_sanitized() ? 5ms : 2ms)
      : runner(some_limits(), time), drafts(some_limits()) {}
  void run(int32_t first = 1) {
    const GenerateRequest request{.prompt = {first, 2, 3}, .max_tokens = 200};
    EXPECT_EQ(collect(*scheduler.submit(request)).tokens, expected_outcome(request).tokens);
  }
  SlowRunner runner;
  DraftRunner drafts;
  Scheduler scheduler{runner, {}, {}, &drafts};
};

TEST(DraftModel, OneThatIsRightSavesMostSteps) {
  Served served;
  served.run();
  EXPECT_LT(served.runner.steps, 80);
  const SchedulerStats stats = served.scheduler.stats();
  EXPECT_GT(stats.accepted_tokens, 120);
  EXPECT_EQ(stats.accepted_tokens, stats.draft_tokens);
}

TEST(DraftModel, OneThatIsWrongIsSoonAskedNoMore) {
  Served served;
  served.drafts.wrong = [] { return true; };
  served.drafts.time = 500us;
  for (int32_t first = 1; first <= 3; ++first) served.run(first);
  EXPECT_LT(served.scheduler.stats().accepted_tokens, 10);  // which were looked up
  EXPECT_LT(served.drafts.steps, 120) << "for 600 tokens";
}

TEST(DraftModel, OneThatIsLostIsDoneWithout) {
  Served served;
  served.drafts.fail_at(7);
  for (int32_t first = 1; first <= 2; ++first) served.run(first);
  EXPECT_LE(served.drafts.steps, 7);
}

// Guesses right and wrong, few pages of either model, ends, cancels and preemption in their midst.
TEST(DraftModel, RandomGuessesChangeNoToken) {
  const int cases = test::rounds(250, 1000);
  int64_t right = 0, wrong = 0, preemptions = 0;
  for (int seed = 0; seed < cases; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    RunnerLimits limits = test::small_limits(), small = limits;
    limits.depth = 1 + static_cast<int32_t>(random() % 3);
    limits.max_tokens = limits.max_rows = 16 + static_cast<int32_t>(random() % 60);
    limits.pages = 16 + static_cast<int32_t>(random() % 20);
    small.pages = 8 + static_cast<int32_t>(random() % 40);
    small.max_tokens = small.max_rows = 8 + static_cast<int32_t>(random() % 30);
    small.max_length -= static_cast<int32_t>(random() % 30);
    small.depth = 1 + static_cast<int32_t>(random() % 3);
    SlowRunner runner(limits, 100us);
    DraftRunner drafts(small);
    drafts.wrong = [noise = std::mt19937(static_cast<unsigned>(seed)), rate = random() % 5]() mutable {
      return noise() % 10 < rate;
    };
    Scheduler scheduler(runner, {.max_drafts = 1 + static_cast<int32_t>(random() % 15)}, {}, &drafts);
    for (int wave = 0; wave < 4; ++wave) {
      std::vector<std::pair<GenerateRequest, std::shared_ptr<Ticket>>> all;
      for (unsigned i = 1 + random() % 4; i > 0; --i) {
        GenerateRequest request = test::random_request(random);
        request.prompt.resize(std::min<std::size_t>(request.prompt.size(), 1 + random() % 12));
        request.max_tokens = 64 - static_cast<int32_t>(request.prompt.size());
        if (random() % 2) request.expected = test::edited(expected_outcome(request).tokens, random);
        all.emplace_back(request, scheduler.submit(request));
        if (random() % 8 == 0) all.back().second->cancel();
      }
      for (auto& [request, ticket] : all) {
        const test::Outcome got = collect(*ticket), expected = expected_outcome(request);
        if (got.how == Finish::kCancelled) continue;
        ASSERT_EQ(got.how, expected.how) << "seed " << seed << ": " << ticket->error().what();
        ASSERT_EQ(got.tokens, expected.tokens) << "seed " << seed;
      }
    }
    ASSERT_TRUE(scheduler.drain(20s));
    const SchedulerStats stats = scheduler.stats();
    EXPECT_EQ(stats.pages_held, 0);
    right += stats.accepted_tokens, wrong += stats.draft_tokens - stats.accepted_tokens;
    preemptions += stats.preemptions;
  }
  EXPECT_GT(right, 8 * cases);
  EXPECT_GT(wrong, cases);  // how many are tried depends on what steps take
  EXPECT_GT(preemptions, 0);
}

}  // namespace
}  // namespace ark::schedule
