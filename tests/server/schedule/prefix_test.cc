// Prompts that begin alike: what is computed once, for whom, and how long it stays.
#include <gtest/gtest.h>

#include <array>

#include "server/schedule/scheduler.h"
#include "tests/server/schedule/requests.h"

namespace ark::schedule::prefix {
namespace {

using namespace std::chrono_literals;
using test::collect, test::expected_outcome, test::FakeRunner;

constexpr int32_t kNone = PageAllocator::kNoPage;
constexpr std::array<int32_t, 2> kA{1, 2}, kB{3, 4};

TEST(PageAllocator, APageComesBackOnlyWhenTheLastStepThatReadsItIsDone) {
  PageAllocator pages(2);
  const int32_t a = pages.take(), b = pages.take();
  EXPECT_EQ(pages.take(), kNone);
  pages.give_back(a, 7);
  EXPECT_EQ(pages.take(), kNone);
  pages.step_done(6);
  EXPECT_EQ(pages.take(), kNone);
  pages.step_done(7);
  EXPECT_EQ(pages.take(), a);
  pages.give_back(b, 3);
  EXPECT_EQ(pages.take(), b);
  EXPECT_THROW(pages.give_back(2, 0), Error);
  pages.give_back(a, 0);
  EXPECT_THROW(pages.give_back(a, 0), Error);
}

TEST(PageAllocator, APublishedPageStaysUntilItsMemoryIsNeeded) {
  PageAllocator pages(3);
  const int32_t a = pages.take(), b = pages.take();
  pages.publish(a, kNone, kA);
  pages.publish(b, a, kB);
  EXPECT_EQ(pages.find(kNone, kA), a);
  EXPECT_EQ(pages.find(a, kB), b);
  EXPECT_EQ(pages.find(kNone, kB), kNone);  // the same tokens behind others are not the same keys
  EXPECT_EQ(pages.find(a, kA), kNone);
  pages.give_back(b, 5);
  pages.give_back(a, 5);
  EXPECT_EQ(pages.counts().cached, 2);
  EXPECT_EQ(pages.obtainable(), 3);
  const int32_t c = pages.take();
  EXPECT_EQ(pages.take(), kNone);  // step 5 may still read them
  EXPECT_EQ(pages.find(a, kB), b);
  pages.step_done(5);
  pages.hold(a);
  pages.hold(a);
  EXPECT_EQ(pages.counts().held, 2);
  EXPECT_EQ(pages.counts().holders, 3);
  EXPECT_EQ(pages.take(), b);  // who is held stays
  EXPECT_EQ(pages.find(a, kB), kNone);
  EXPECT_EQ(pages.take(), kNone);
  pages.give_back(a, 6);
  EXPECT_EQ(pages.counts().held, 3);
  pages.give_back(a, 0);
  EXPECT_EQ(pages.counts().cached, 1);
  EXPECT_EQ(pages.take(), kNone);  // the other holder's step 6 is not done
  pages.forget();
  EXPECT_EQ(pages.find(kNone, kA), kNone);
  EXPECT_EQ(pages.counts().retiring, 1);
  pages.step_done(6);
  EXPECT_EQ(pages.take(), a);
  EXPECT_EQ(pages.counts().free, 0);
  pages.give_back(c, 0);
  EXPECT_EQ(pages.counts().free, 1);
}

TEST(PageAllocator, TheOldestGoesFirstAndNeverBeforeWhatContinuesIt) {
  PageAllocator pages(4);
  std::array<int32_t, 4> page{};
  for (int32_t& p : page) p = pages.take();
  pages.publish(page[0], kNone, kA);  // 0 - 1 - 2, 0 - 3
  pages.publish(page[1], page[0], kA);
  pages.publish(page[2], page[1], kA);
  pages.publish(page[3], page[0], kB);
  pages.hold(page[0]);
  for (const int32_t i : {2, 1, 0}) pages.give_back(page[i], 0);
  for (const int32_t i : {3, 0}) pages.give_back(page[i], 0);
  for (const int32_t i : {2, 1, 3, 0}) EXPECT_EQ(pages.take(), page[i]);
}

class Prefix : public testing::Test {
 protected:
  static RunnerLimits limits() {
    RunnerLimits limits = test::small_limits();
    limits.max_tokens = 64;
    return limits;
  }
  // Tokens that are computed until it has its own, which must be the right ones.
  int64_t run(const GenerateRequest& request) {
    const int64_t before = runner.computed;
    const auto ticket = scheduler.submit(request);
    const test::Outcome got = collect(*ticket), expected = expected_outcome(request);
    EXPECT_EQ(got.tokens, expected.tokens);
    EXPECT_EQ(got.prompt, expected.prompt);
    cached = ticket->times().cached_tokens;
    return runner.computed - before;
  }
  static GenerateRequest of(int32_t size, int32_t max_tokens = 1) {
    GenerateRequest request{.prompt = {}, .max_tokens = max_tokens};
    for (int32_t i = 0; i < size; ++i) request.prompt.push_back(i * i % 37);
    return request;
  }

  FakeRunner runner{limits()};
  Scheduler scheduler{runner, {}};
  int32_t cached = -1;
};

TEST_F(Prefix, ASecondPromptComputesOnlyWhatTheFirstHasNot) {
  EXPECT_EQ(run(of(22)), 22);
  EXPECT_EQ(cached, 0);
  EXPECT_EQ(run(of(22)), 2);  // pages of 4: the last is not full
  EXPECT_EQ(cached, 20);
  EXPECT_EQ(run(of(20)), 4);  // the last token's logits are needed
  EXPECT_EQ(cached, 16);
  EXPECT_EQ(run(of(30)), 10);
  GenerateRequest other = of(22);
  other.prompt[9] = 49;
  EXPECT_EQ(run(other), 14);
  const SchedulerStats stats = scheduler.stats();
  EXPECT_EQ(stats.prefix_queries, 22 + 22 + 20 + 30 + 22);
  EXPECT_EQ(stats.prefix_hits, 20 + 16 + 20 + 8);
  EXPECT_EQ(stats.prompt_tokens, stats.prefix_queries - stats.prefix_hits);
  EXPECT_EQ(stats.pages_cached, 5 + 2 + 3);
  EXPECT_EQ(stats.pages_held, 0);
}

TEST_F(Prefix, AConversationGoesOnBehindItsAnswers) {
  GenerateRequest turn = of(10, 11);
  run(turn);
  const std::vector<int32_t> answer = expected_outcome(turn).tokens;
  turn.prompt.insert(turn.prompt.end(), answer.begin(), answer.end());
  turn.prompt.push_back(7);
  EXPECT_EQ(run(turn), 2 + 10);  // 22 tokens; the answer's last was never fed
  EXPECT_EQ(cached, 20);
}

TEST_F(Prefix, OnlyEqualClientsAndSaltsShare) {
  GenerateRequest request = of(12);
  EXPECT_EQ(run(request), 12);
  request.client = 1;
  EXPECT_EQ(run(request), 12);
  request.cache_salt = "a";
  EXPECT_EQ(run(request), 12);
  request.cache_salt = "b";
  EXPECT_EQ(run(request), 12);
  request.cache_salt = "a";
  EXPECT_EQ(run(request), 4);
  request.client = 0, request.cache_salt = "";
  EXPECT_EQ(run(request), 4);
}

TEST_F(Prefix, PromptsWhoseLogprobsAreWantedAreComputedWhole) {
  GenerateRequest request = of(22);
  run(request);
  request.prompt_logprobs = true;
  runner.computed = 0;
  EXPECT_EQ(run(request), 22);
  EXPECT_EQ(cached, 0);
  request.prompt_logprobs = false;
  EXPECT_EQ(run(request), 2);
}

// Those that come at once share what the first of them computes, in the same step.
TEST_F(Prefix, ManyAtOnceComputeTheirCommonPartOnce) {
  std::vector<std::shared_ptr<Ticket>> tickets;
  std::vector<GenerateRequest> requests;
  for (int32_t i = 0; i < 4; ++i) {
    requests.push_back(of(41, 3));
    requests.back().prompt.back() = i;
  }
  for (const GenerateRequest& request : requests) tickets.push_back(scheduler.submit(request));
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(collect(*tickets[i]).tokens, expected_outcome(requests[i]).tokens);
  EXPECT_EQ(runner.computed, 40 + 4 * 3);
  EXPECT_EQ(scheduler.stats().prefix_hits, 3 * 40);
}

TEST(PrefixOff, NothingIsKept) {
  RunnerLimits limits = test::small_limits();
  for (const bool by_option : {true, false}) {
    limits.shares_pages = by_option;
    FakeRunner runner(limits);
    Scheduler scheduler(runner, {.prefix_cache = !by_option});
    for (int i = 0; i < 2; ++i)
      collect(*scheduler.submit({.prompt = std::vector<int32_t>(12, 3), .max_tokens = 1}));
    EXPECT_EQ(runner.computed, 24);
    EXPECT_EQ(scheduler.stats().pages_cached, 0);
  }
}

}  // namespace
}  // namespace ark::schedule::prefix
