// The scheduler over a real ragged runner: random requests, many of which begin alike, few pages, cancels. Everyone
// gets the tokens that they get alone with each prompt computed whole and nothing drafted, and no page stays behind.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "server/schedule/scheduler.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"
#include "tests/server/schedule/direct_source.h"
#include "tests/server/schedule/requests.h"

namespace ark::schedule {
namespace {

GenerateRequest any_request(std::mt19937& random) {
  GenerateRequest request;
  for (uint32_t i = random() % 3 ? random() % 17 : 0; i > 0; --i)  // as others begin
    request.prompt.push_back(static_cast<int32_t>(7 * request.prompt.size() % 101));
  for (uint32_t i = 1 + random() % 24; i > 0; --i)
    request.prompt.push_back(static_cast<int32_t>(random() % 101));
  request.max_tokens = static_cast<int32_t>(1 + random() % 20);
  request.sampling.temperature = random() % 2 ? 0 : 0.8f;
  request.sampling.seed = random();
  if (random() % 3 == 0) request.sampling.frequency_penalty = 0.5f;
  if (random() % 3 == 0) request.sampling.repetition_penalty = 1.5f;  // counts prompts too
  if (random() % 3 == 0) request.sampling.top_p = 0.9f, request.sampling.top_k = 40;
  if (random() % 3 == 0) request.bias = {{static_cast<int32_t>(random() % 101), 5.0f}, {3, -5.0f}};
  request.top_logprobs = static_cast<int32_t>(random() % 5) - 1;
  return request;
}

// Tokens until the end; cancels after `cancel_after` of them if that is >= 0.
std::vector<TokenEvent> collect(Ticket& ticket, int32_t cancel_after, Finish& how) {
  std::vector<TokenEvent> events;
  for (;;) {
    how = ticket.wait(events, std::chrono::milliseconds(200));
    if (how != Finish::kRunning) return events;
    if (cancel_after >= 0 && static_cast<int32_t>(events.size()) >= cancel_after) ticket.cancel();
  }
}

bool is_same(const TokenEvent& a, const TokenEvent& b) {
  return a.token == b.token && a.logprob == b.logprob && a.top == b.top;
}

class RealRunner : public testing::TestWithParam<int32_t> {};

TEST_P(RealRunner, GivesEveryoneTheTokensThatTheyGetAlone) {
  test::RunnerSetup setup;
  setup.ranks = GetParam();
  setup.options.threads = GetParam();
  setup.options.counter_base = 0xfffff000;
  setup.max_slots = 6;
  setup.max_tokens = 32;
  setup.pages = 26;  // fewer than six long sequences need: preemption
  const auto runner = test::make_runner(test::llama_tokens(), setup);
  std::mt19937 random(21);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 60; ++i) requests.push_back(any_request(random));
  std::vector<std::vector<TokenEvent>> alone;
  {
    Scheduler scheduler(*runner, {.prefix_cache = false, .max_drafts = 0});
    for (GenerateRequest& request : requests) {
      Finish how;
      alone.push_back(collect(*scheduler.submit(request), -1, how));
      ASSERT_EQ(how, Finish::kLength);
      std::vector<int32_t> tokens;
      for (const TokenEvent& event : alone.back()) tokens.push_back(event.token);
      request.expected = test::edited(tokens, random);
    }
  }
  Scheduler scheduler(*runner, {});
  std::atomic<int> wrong{0};
  const auto check = [&](std::size_t i, int32_t cancel_after) {
    Finish how;
    const std::vector<TokenEvent> got = collect(*scheduler.submit(requests[i]), cancel_after, how);
    const bool is_prefix =
        got.size() <= alone[i].size() && std::equal(got.begin(), got.end(), alone[i].begin(), is_same);
    const bool whole = how == Finish::kLength && got.size() == alone[i].size();
    if (!is_prefix || !(whole || (cancel_after >= 0 && how == Finish::kCancelled))) ++wrong;
  };
  {
    std::vector<std::jthread> clients;
    for (std::size_t c = 0; c < 12; ++c) {
      clients.emplace_back([&, c] {
        for (std::size_t i = c; i < requests.size(); i += 12)
          check(i, i % 3 == 0 ? static_cast<int32_t>(i % 7) : -1);
      });
    }
  }
  // Alone there are drafts, right ones and wrong ones; on a busy machine not before they seem cheap.
  const auto stats = [&] { return scheduler.stats(); };
  const auto has_both = [&] {
    return stats().accepted_tokens > 0 && stats().draft_tokens > stats().accepted_tokens;
  };
  for (std::size_t n = 0; n < 60 || (n < 3000 && !has_both()); ++n) check(n % requests.size(), -1);
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(scheduler.drain(std::chrono::seconds(10)));
  EXPECT_EQ(scheduler.stats().pages_held, 0);
  EXPECT_GT(scheduler.stats().preemptions, 0);
  EXPECT_GT(scheduler.stats().prefix_hits, 0);
  EXPECT_GT(scheduler.stats().accepted_tokens, 0);
  EXPECT_GT(scheduler.stats().draft_tokens, scheduler.stats().accepted_tokens);
}

// Pages that another runner has computed give the bytes that computing them gives, penalties of prompts included.
class RealNeighbours : public testing::TestWithParam<std::pair<int32_t, DType>> {};

TEST_P(RealNeighbours, TakenPagesAreComputedOnes) {
  test::RunnerSetup setup;
  setup.ranks = GetParam().first;
  setup.kv_dtype = GetParam().second;
  setup.options.threads = setup.ranks;
  const auto one = test::make_runner(test::llama_tokens(), setup);
  const auto other = test::make_runner(test::llama_tokens(), setup);
  EXPECT_EQ(one->page_bytes(), page_bytes({one->program()}) * setup.ranks);
  Scheduler first(*one, {});
  test::DirectSource source(first, *one);
  Scheduler second(*other, {}, {}, nullptr, &source);
  std::mt19937 random(3);
  int64_t cached = 0;
  for (int i = 0; i < 12; ++i) {
    GenerateRequest request = any_request(random);
    request.cache_salt = std::to_string(i);  // each is asked for
    Finish how;
    const std::vector<TokenEvent> computed = collect(*first.submit(request), -1, how);
    const auto ticket = second.submit(request);
    const std::vector<TokenEvent> got = collect(*ticket, -1, how);
    ASSERT_TRUE(std::ranges::equal(got, computed, is_same)) << i;
    EXPECT_EQ(ticket->times().cached_tokens, (std::ssize(request.prompt) - 1) / 4 * 4);
    cached += ticket->times().cached_tokens;
  }
  EXPECT_GT(cached, 0);
}

INSTANTIATE_TEST_SUITE_P(KvTypes, RealNeighbours,
                         testing::Values(std::pair(1, DType::kF32), std::pair(2, DType::kI8)));

INSTANTIATE_TEST_SUITE_P(SchedulerDegrees, RealRunner, testing::Values(1, 2));

}  // namespace
}  // namespace ark::schedule
