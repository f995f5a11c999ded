// Pages that other servers have: what is taken, what is computed all the same, and that nobody's tokens change or wait
// for ever, whatever comes of a question.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "server/schedule/scheduler.h"
#include "tests/server/schedule/direct_source.h"
#include "tests/server/schedule/requests.h"

namespace ark::schedule::neighbours {
namespace {

using namespace std::chrono_literals;
using test::collect, test::expected_outcome, test::FakeRunner;

constexpr std::array<int32_t, 2> kA{1, 2}, kB{3, 4};
constexpr std::array<int32_t, 4> kAB{1, 2, 3, 4};

TEST(PageDirectory, OthersFindPagesOnceTheStepsThatWriteThemAreDone) {
  PageAllocator pages(3);
  const auto run = [&] { return pages.directory().find_run({}, kAB, 2); };
  const int32_t a = pages.take(), b = pages.take();
  pages.publish(a, PageAllocator::kNoPage, kA, PageAllocator::kNextStep);
  pages.publish(b, a, kB, 9);
  EXPECT_EQ(pages.find(a, kB), b);  // who comes in a later step
  EXPECT_TRUE(run().empty());
  pages.step_posted(8);
  pages.step_done(7);
  EXPECT_TRUE(run().empty());
  pages.step_done(8);
  ASSERT_EQ(run().size(), 1u);
  EXPECT_EQ(run()[0].page, a);
  pages.step_done(9);
  ASSERT_EQ(run().size(), 2u);
  EXPECT_TRUE(pages.directory().find_run(kA, kAB, 2).empty()) << "somebody else's";
  EXPECT_EQ(pages.directory().find_run({}, std::array{1, 2, 3, 5}, 2).size(), 1u);
}

TEST(PageDirectory, APageThatWasGivenAwayIsNoLongerCurrent) {
  PageAllocator pages(2);
  const int32_t a = pages.take(), b = pages.take();
  pages.publish(a, PageAllocator::kNoPage, kA);
  pages.publish(b, a, kB);
  const auto run = pages.directory().find_run({}, kAB, 2);
  ASSERT_EQ(run.size(), 2u);
  pages.give_back(b, 0), pages.give_back(a, 0);
  EXPECT_TRUE(pages.directory().is_current(run[1]));  // kept
  EXPECT_EQ(pages.take(), b);
  EXPECT_TRUE(pages.directory().is_current(run[0]));
  EXPECT_FALSE(pages.directory().is_current(run[1]));
  pages.publish(b, a, kB);  // the same again, but not the one that was found
  EXPECT_FALSE(pages.directory().is_current(run[1]));
  pages.forget();
  EXPECT_FALSE(pages.directory().is_current(run[0]));
  EXPECT_TRUE(pages.directory().find_run({}, kAB, 2).empty());
}

GenerateRequest of(int32_t size, int32_t max_tokens = 1) {
  GenerateRequest request{.prompt = {}, .max_tokens = max_tokens};
  for (int32_t i = 0; i < size; ++i) request.prompt.push_back(i * i % 37);
  return request;
}

struct Server {
  explicit Server(PageSource* source = nullptr, RunnerLimits limits = test::small_limits())
      : runner(limits), scheduler(runner, {}, {}, nullptr, source) {}
  // Tokens that are computed until it has its own, which must be the right ones.
  int64_t run(const GenerateRequest& request) {
    const int64_t before = runner.computed;
    const auto ticket = scheduler.submit(request);
    EXPECT_EQ(collect(*ticket).tokens, expected_outcome(request).tokens);
    cached = ticket->times().cached_tokens;
    return runner.computed - before;
  }
  FakeRunner runner;
  Scheduler scheduler;
  int32_t cached = -1;
};

TEST(Neighbours, WhatOneHasComputedAnotherOneTakes) {
  Server one;
  test::DirectSource source(one.scheduler, one.runner);
  Server other(&source);
  EXPECT_EQ(one.run(of(22, 3)), 22 + 2);
  EXPECT_EQ(other.run(of(22, 3)), 2 + 2);  // pages of 4
  EXPECT_EQ(other.cached, 20);
  EXPECT_EQ(source.questions, 1);
  EXPECT_EQ(other.run(of(22, 3)), 2 + 2);  // its own by now
  EXPECT_EQ(source.questions, 1);
  EXPECT_EQ(other.run(of(30)), 10);  // what nobody has is computed
  EXPECT_EQ(one.run(of(40)), 20);    // and nobody asks for it
  GenerateRequest others = of(22);
  others.cache_salt = "another";
  EXPECT_EQ(other.run(others), 22);
  one.run(others);
  Server third(&source);
  EXPECT_EQ(third.run(others), 2);
  others.owner = "a key", others.client = 3;
  one.run(others);
  others.client = 5;  // numbers are each server's own
  EXPECT_EQ(third.run(others), 2);
  const SchedulerStats stats = third.scheduler.stats();
  EXPECT_EQ(stats.prefix_hits, 20 + 20);
  EXPECT_EQ(stats.pages_held, 0);
}

// Answers that come when the test says so. Bytes are what FakeRunner has of these tokens.
class SlowSource : public PageSource {
 public:
  struct Answer {
    std::mutex mutex;
    std::deque<std::string> pages;
    bool is_over = false, is_dropped = false;
  };
  bool is_there() const override { return true; }
  bool computes() const override { return false; }
  double seconds(int32_t) const override { return price; }
  void on_arrival(std::function<void()> call) override {
    const std::lock_guard lock(mutex);
    call_ = std::move(call);
  }
  std::unique_ptr<PageFetch> ask(PageQuestion question) override {
    const std::lock_guard lock(mutex);
    questions.push_back(std::move(question));
    answers.push_back(std::make_shared<Answer>());
    return std::make_unique<Fetch>(answers.back());
  }
  std::size_t asked() {
    const std::lock_guard lock(mutex);
    return questions.size();
  }
  PageQuestion question(std::size_t which) {
    const std::lock_guard lock(mutex);
    return questions.at(which);
  }
  void give(std::size_t which, int32_t pages, bool is_over, int32_t size = 4) {
    const std::lock_guard lock(mutex);
    const PageQuestion& question = questions.at(which);
    Answer& answer = *answers.at(which);
    {
      const std::lock_guard own(answer.mutex);
      for (int32_t i = 0; i < pages; ++i, ++given[which])
        answer.pages.emplace_back(
            reinterpret_cast<const char*>(question.tokens.data() + (question.first + given[which]) * size),
            static_cast<std::size_t>(size) * 4);
      answer.is_over = is_over;
    }
    if (call_) call_();
  }
  bool is_dropped(std::size_t which) {
    const std::lock_guard lock(mutex);
    const std::lock_guard own(answers.at(which)->mutex);
    return answers[which]->is_dropped;
  }

  std::atomic<double> price{0};
  std::mutex mutex;
  std::deque<PageQuestion> questions;
  std::deque<std::shared_ptr<Answer>> answers;
  std::map<std::size_t, int32_t> given;

 private:
  struct Fetch : PageFetch {
    explicit Fetch(std::shared_ptr<Answer> a) : answer(std::move(a)) {}
    ~Fetch() override {
      const std::lock_guard lock(answer->mutex);
      answer->is_dropped = true;
    }
    std::optional<std::string> next() override {
      const std::lock_guard lock(answer->mutex);
      if (answer->pages.empty()) return std::nullopt;
      std::string page = std::move(answer->pages.front());
      answer->pages.pop_front();
      return page;
    }
    bool is_over() override {
      const std::lock_guard lock(answer->mutex);
      return answer->is_over;
    }
    std::shared_ptr<Answer> answer;
  };
  std::function<void()> call_;
};

void until(const std::function<bool()>& condition) {
  for (int i = 0; i < 20'000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(condition());
}

TEST(Neighbours, OthersGoOnWhileOneWaits) {
  SlowSource source;
  Server server(&source);
  const GenerateRequest waiting = of(22, 4);
  const auto ticket = server.scheduler.submit(waiting);
  until([&] { return source.asked() == 1; });
  EXPECT_EQ(source.questions[0].first, 0);
  EXPECT_EQ(source.questions[0].tokens.size(), 20u);
  EXPECT_EQ(server.run({.prompt = {9, 9, 9}, .max_tokens = 20}), 22);  // no whole page: nobody is asked
  source.give(0, 2, false);
  until([&] { return server.scheduler.stats().pages_held == 2; });
  EXPECT_EQ(server.runner.computed, 22);
  source.give(0, 1, true);  // no more than that: the rest is computed
  EXPECT_EQ(collect(*ticket).tokens, expected_outcome(waiting).tokens);
  EXPECT_EQ(ticket->times().cached_tokens, 12);
  EXPECT_EQ(server.runner.computed, 22 + (22 - 12) + 3);
}

TEST(Neighbours, EqualPromptsAskOnce) {
  SlowSource source;
  Server server(&source);
  GenerateRequest one = of(22), two = of(22);
  two.prompt.back() = 40;
  const auto first = server.scheduler.submit(one), second = server.scheduler.submit(two);
  until([&] { return source.asked() == 1; });
  std::this_thread::sleep_for(60ms);
  EXPECT_EQ(source.asked(), 1u);
  source.give(0, 5, true);
  EXPECT_EQ(collect(*first).tokens, expected_outcome(one).tokens);
  EXPECT_EQ(collect(*second).tokens, expected_outcome(two).tokens);
  EXPECT_EQ(server.runner.computed, 2 + 2);
  EXPECT_EQ(source.asked(), 1u);
}

TEST(Neighbours, WhoGoesLeavesNothingBehind) {
  SlowSource source;
  {
    Server server(&source);
    const auto ticket = server.scheduler.submit(of(22)), follower = server.scheduler.submit(of(22));
    until([&] { return source.asked() == 1; });
    source.give(0, 2, false);
    until([&] { return server.scheduler.stats().pages_held == 2; });
    ticket->cancel();
    EXPECT_EQ(collect(*ticket).how, Finish::kCancelled);
    EXPECT_TRUE(source.is_dropped(0));
    until([&] { return source.asked() == 2; });  // now the other one asks, for what is still missing
    EXPECT_EQ(source.questions[1].first, 2);
    source.give(1, 0, true);
    EXPECT_EQ(collect(*follower).tokens, expected_outcome(of(22)).tokens);
    EXPECT_EQ(server.scheduler.stats().pages_held, 0);
    server.scheduler.submit({.prompt = std::vector<int32_t>(22, 5), .max_tokens = 1});
    until([&] { return source.asked() == 3; });
  }  // ends in the middle
  EXPECT_TRUE(source.is_dropped(2));
}

TEST(Neighbours, WhatIsDearerThanComputingIsNotAskedFor) {
  SlowSource source;
  source.price = 1e6;
  RunnerLimits limits = test::small_limits();
  limits.max_tokens = 64;
  Server server(&source, limits);
  const auto run = [&](int32_t first) {
    GenerateRequest request = of(22);
    request.prompt[0] = first;
    const auto ticket = server.scheduler.submit(request);
    const std::size_t before = source.asked();
    if (first == 40) until([&] { return source.asked() == 1; }), source.give(0, 0, true);
    EXPECT_EQ(collect(*ticket).tokens, expected_outcome(request).tokens);
    return source.asked() - before;
  };
  run(40);  // nobody knows yet what computing takes
  for (int32_t first = 0; first < 30; ++first) EXPECT_EQ(run(first), 0u);
}

// Whatever comes, whenever, and where there are hardly any pages: everybody has the right tokens in the end.
TEST(Neighbours, RandomAnswersChangeNoToken) {
  SlowSource source;
  RunnerLimits limits = test::small_limits();
  limits.pages = 18;
  Server server(&source, limits);
  std::mt19937 random(5);
  std::atomic<bool> is_done{false};
  std::thread giver([&] {
    std::mt19937 mine(6);
    for (std::size_t seen = 0; !is_done;) {
      const std::size_t asked = source.asked();
      for (; seen < asked; ++seen) {
        const PageQuestion question = source.question(seen);
        const auto most =
            static_cast<uint32_t>(question.tokens.size() / 4) - static_cast<uint32_t>(question.first);
        const auto some = static_cast<int32_t>(mine() % (most + 1));
        const auto rest = static_cast<int32_t>(mine() % (most + 1 - static_cast<uint32_t>(some)));
        source.give(seen, some, false);
        if (mine() % 4 == 0) std::this_thread::sleep_for(1ms);
        source.give(seen, rest, true);
      }
      std::this_thread::sleep_for(100us);
    }
  });
  std::vector<std::pair<GenerateRequest, std::shared_ptr<Ticket>>> running;
  const auto check = [&](std::size_t most) {
    for (; running.size() > most; running.erase(running.begin())) {
      const auto& [request, ticket] = running.front();
      const test::Outcome got = collect(*ticket), expected = expected_outcome(request);
      if (got.how == Finish::kCancelled) continue;
      ASSERT_EQ(got.tokens, expected.tokens);
      ASSERT_EQ(got.how, expected.how);
      ASSERT_EQ(got.prompt, expected.prompt);
    }
  };
  for (int i = 0; i < 300; ++i) {
    GenerateRequest request = test::random_request(random);
    auto ticket = server.scheduler.submit(request);
    if (random() % 10 == 0) ticket->cancel();
    running.emplace_back(std::move(request), std::move(ticket));
    check(random() % 8);
  }
  check(0);
  EXPECT_TRUE(server.scheduler.drain(20s));
  is_done = true;
  giver.join();
  EXPECT_EQ(server.scheduler.stats().pages_held, 0);
  EXPECT_GT(server.scheduler.stats().prefix_hits, 0);
  EXPECT_GT(source.asked(), 50u);
}

}  // namespace
}  // namespace ark::schedule::neighbours
