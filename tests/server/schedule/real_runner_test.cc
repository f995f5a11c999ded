// The scheduler over a real ragged runner: random requests, many of which begin alike, few pages, cancels. Everyone
// gets the tokens that they get alone with each prompt computed whole, and no page stays behind.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "server/schedule/scheduler.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

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
  return request;
}

// Tokens until the end; cancels after `cancel_after` of them if that is >= 0.
std::vector<int32_t> collect(Ticket& ticket, int32_t cancel_after, Finish& how) {
  std::vector<int32_t> tokens;
  for (;;) {
    std::vector<TokenEvent> events;
    how = ticket.wait(events, std::chrono::milliseconds(200));
    for (const TokenEvent& event : events) tokens.push_back(event.token);
    if (how != Finish::kRunning) return tokens;
    if (cancel_after >= 0 && static_cast<int32_t>(tokens.size()) >= cancel_after) ticket.cancel();
  }
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
  std::vector<std::vector<int32_t>> alone;
  {
    Scheduler scheduler(*runner, {.prefix_cache = false});
    for (const GenerateRequest& request : requests) {
      Finish how;
      alone.push_back(collect(*scheduler.submit(request), -1, how));
      ASSERT_EQ(how, Finish::kLength);
    }
  }
  Scheduler scheduler(*runner, {});
  std::vector<std::jthread> clients;
  std::atomic<int> wrong{0};
  for (std::size_t c = 0; c < 12; ++c) {
    clients.emplace_back([&, c] {
      for (std::size_t i = c; i < requests.size(); i += 12) {
        const int32_t cancel_after = i % 3 == 0 ? static_cast<int32_t>(i % 7) : -1;
        Finish how;
        const std::vector<int32_t> got = collect(*scheduler.submit(requests[i]), cancel_after, how);
        const bool is_prefix =
            got.size() <= alone[i].size() && std::equal(got.begin(), got.end(), alone[i].begin());
        const bool whole = how == Finish::kLength && got.size() == alone[i].size();
        if (!is_prefix || !(whole || (cancel_after >= 0 && how == Finish::kCancelled))) ++wrong;
      }
    });
  }
  clients.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(scheduler.drain(std::chrono::seconds(10)));
  EXPECT_EQ(scheduler.stats().pages_held, 0);
  EXPECT_GT(scheduler.stats().preemptions, 0);
  EXPECT_GT(scheduler.stats().prefix_hits, 0);
}

INSTANTIATE_TEST_SUITE_P(SchedulerDegrees, RealRunner, testing::Values(1, 2));

}  // namespace
}  // namespace ark::schedule
