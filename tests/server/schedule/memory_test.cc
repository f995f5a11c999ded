// Each allocation of the scheduler's thread fails once: requests end, with their tokens or with an error. For this the
// program's operator new is replaced.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "server/schedule/scheduler.h"
#include "tests/fixtures.h"
#include "tests/server/schedule/requests.h"

namespace {

std::atomic<int64_t> allocations_left{0};  // until one fails; none does at 0
thread_local bool is_spared = false;

}  // namespace

// Not inlined: where they meet, the compiler takes them for a pair that does not fit.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (!is_spared && allocations_left.load() > 0 && allocations_left.fetch_sub(1) == 1) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
// Of sorts. A sanitizer would not send it to the one above.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace ark::schedule {
namespace {

using namespace std::chrono_literals;

constexpr int kRequests = 40;  // more than a deque has room for at first

// Whether an allocation failed. Steps end only when all requests are there.
bool try_without(int64_t allocation) {
  test::FakeRunner runner(test::small_limits());
  std::mt19937 random(1);
  std::vector<std::pair<GenerateRequest, std::shared_ptr<Ticket>>> all;
  is_spared = true;
  Scheduler scheduler(runner, {.max_drafts = 3});
  runner.allow(0);
  allocations_left = allocation;
  for (int i = 0; i < kRequests; ++i) {
    GenerateRequest request = test::random_request(random);
    if (i >= 6) request.prompt.resize(1), request.max_tokens = 1;
    try {
      all.emplace_back(request, scheduler.submit(request));
    } catch (const Error& error) {  // it has failed before
      EXPECT_EQ(error.code(), Code::kUnavailable);
    }
  }
  runner.allow(test::FakeRunner::kAllSteps);
  for (auto& [request, ticket] : all) {
    const test::Outcome got = test::collect(*ticket), wanted = test::expected_outcome(request);
    if (got.how == Finish::kFailed && scheduler.failure() == "out of memory") continue;
    EXPECT_EQ(got.how, wanted.how) << allocation;
    EXPECT_EQ(got.tokens, wanted.tokens) << allocation;
  }
  EXPECT_TRUE(scheduler.drain(20s)) << allocation;
  const bool failed = allocations_left.exchange(0) == 0;
  EXPECT_TRUE(failed || scheduler.failure().empty()) << allocation;  // a sort goes on without its memory
  return failed;
}

TEST(SchedulerMemory, EachFailedAllocationEndsRequestsByName) {
  int64_t allocation = 1;
  while (!HasFailure() && try_without(allocation))
    allocation += test::is_sanitized() ? 8 : 1 + allocation / 200;
  EXPECT_GT(allocation, 1000);
  std::printf("%lld allocations\n", static_cast<long long>(allocation));
}

}  // namespace
}  // namespace ark::schedule
