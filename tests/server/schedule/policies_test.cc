// Who is read first, and how much of it beside streams: in virtual time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "server/schedule/admit.h"
#include "server/schedule/order.h"
#include "server/schedule/pace.h"
#include "server/schedule/prefix.h"
#include "server/schedule/turns.h"
#include "tests/server/schedule/requests.h"

namespace ark::schedule::policies {
namespace {

class Order : public testing::Test {
 protected:
  std::shared_ptr<Sequence> come(int32_t size, uint32_t client = 0) {
    auto s = std::make_shared<Sequence>();
    s->request.prompt.resize(static_cast<std::size_t>(size));
    s->request.client = client;
    s->tokens = s->request.prompt;
    s->asked = size;
    s->arrival = ++arrivals;
    arrive(state, *s);
    state.waiting.push_back(s);
    return s;
  }
  // Reads up to `budget` tokens of who comes first, and returns it.
  std::shared_ptr<Sequence> read(int32_t budget) {
    const auto first = std::ranges::min_element(
        state.waiting, [&](const auto& a, const auto& b) { return goes_before(state, *a, *b); });
    const std::shared_ptr<Sequence> s = *first;
    const int32_t count = std::min(budget, s->asked - s->posted);
    count_tokens(state, *s, count, 0);
    s->posted += count;
    if (s->posted == s->asked) state.waiting.erase(first);
    return s;
  }

  SchedulerState state{test::small_limits(), {}};
  uint64_t arrivals = 0;
};

TEST_F(Order, TheShortestRestFirstThenByArrival) {
  const auto a = come(100), b = come(30), c = come(30), d = come(50);
  EXPECT_EQ(read(10), b);
  for (const auto& next : {b, b, c, c, c, d}) EXPECT_EQ(read(d == next ? 50 : 10), next);
  EXPECT_EQ(read(100), a);
}

TEST_F(Order, ByArrivalWhereThatIsAskedFor) {
  SchedulerState fifo(test::small_limits(), {.shortest_first = false});
  const auto a = come(100), b = come(1);
  fifo.work[0];
  EXPECT_TRUE(goes_before(fifo, *a, *b) && !goes_before(fifo, *b, *a));
  EXPECT_TRUE(goes_before(state, *b, *a) && !goes_before(state, *a, *b));
}

// However many short ones come: sixteen times its length is read before a long one, at most.
TEST_F(Order, NobodyWaitsForEver) {
  come(50);
  const auto longest = come(1000);
  for (; longest->posted == 0; read(20)) {
    for (int i = 0; i < 3; ++i) come(1 + static_cast<int32_t>(arrivals % 90));
    ASSERT_LE(state.work[0].served, 16 * 1000 + 20);
  }
  EXPECT_GT(state.work[0].served, 12 * 1000);
}

// Nor where answers take the time: what is generated counts, too.
TEST_F(Order, WhatIsGeneratedMakesOlder) {
  const auto longest = come(100), stream = come(1);
  read(1);
  for (int token = 0; token < 800; ++token) {
    const auto next = come(1);
    ASSERT_TRUE(goes_before(state, *next, *longest)) << token;
    state.waiting.pop_back();
    count_tokens(state, *stream, 0, 1);
  }
  EXPECT_TRUE(goes_before(state, *longest, *come(1)));
}

// Whose streams run is held back by nobody, and has nothing to claim later.
TEST_F(Order, StreamsAreNoClaim) {
  const auto stream = come(1, 2);
  read(1);
  stream->tokens.resize(2);  // its prompt and a token
  state.running.push_back(stream);
  for (int i = 0; i < 100; ++i) come(100, 1), read(100);
  for (int i = 0; i < 50; ++i) come(100, 2);
  const auto next = come(100, 1);
  for (int i = 0; i < 2; ++i) read(100);
  EXPECT_EQ(next->posted, 100);
}

// What others have computed counts as read before there is a slot, too; looking it up holds nothing.
TEST(Slots, WhatIsCachedCountsAsReadBeforeThereIsASlot) {
  RunnerLimits limits = test::small_limits();
  limits.page_size = 4, limits.pages = 24;
  SchedulerState state(limits, {.max_sequences = 1});
  std::vector<std::shared_ptr<Sequence>> all;
  const auto come = [&](int32_t size, int32_t first) {
    GenerateRequest request;
    for (int32_t i = 0; i < size; ++i) request.prompt.push_back(first + i);
    all.push_back(make_sequence(std::move(request), {}, {}));
    all.back()->arrival = all.size();
    arrive(state, *all.back());
    state.waiting.push_back(all.back());
    return all.back();
  };
  const auto compute = [&](const Sequence& s, int32_t count) {
    for (int32_t i = 0, parent = PageAllocator::kNoPage; i < count; ++i) {
      const int32_t page = state.pages.take();
      state.pages.publish(page, parent, page_contents(s.scope, s.tokens, i, limits.page_size));
      parent = page;
    }
  };
  const auto medium = come(12, 100), cached = come(30, 0), other = come(40, 200);
  compute(*cached, 6);
  const auto before = state.pages.counts();
  look_ahead(state);
  EXPECT_EQ((std::array{medium->found, cached->found, other->found}), (std::array{0, 24, 0}));
  EXPECT_EQ(state.pages.counts().holders, before.holders);
  EXPECT_EQ(state.pages.counts().held, before.held);
  EXPECT_TRUE(goes_before(state, *cached, *medium));
  // It is looked up again, seldom.
  compute(*other, 9);
  look_ahead(state);
  EXPECT_EQ(other->found, 0);
  state.counts.steps += 100;
  look_ahead(state);
  EXPECT_EQ(other->found, 36);
  give_slots(state);
  EXPECT_EQ(state.running, std::vector{other});  // 4 are left of it, 6 of the one that came before
}

// Who cannot be in time any more goes behind those who can, but not for ever.
TEST(Slots, OneOfSixteenGoesToWhoIsLate) {
  SchedulerState state(test::small_limits(), {.max_sequences = 1, .slo_ttft = 1});
  state.now = Turns::Clock::time_point(std::chrono::seconds(100));
  const auto come = [&](std::chrono::seconds waited) {
    GenerateRequest request;
    request.prompt = {1, 2, 3};
    const auto s = make_sequence(std::move(request), {}, state.now - waited);
    s->arrival = 1 + state.counts.finished++;
    arrive(state, *s);
    state.waiting.push_back(s);
    return s;
  };
  const std::vector late = {come(std::chrono::seconds(5)), come(std::chrono::seconds(4))};
  std::vector<int> turns;
  for (int slot = 1; slot <= 40; ++slot) {
    come({});
    give_slots(state);
    ASSERT_EQ(state.running.size(), 1u);
    count_tokens(state, *state.running[0], 3, 0);
    if (turns.size() < late.size() && state.running[0] == late[turns.size()]) turns.push_back(slot);
    state.free_slots.push_back(state.running[0]->slot);
    state.running.clear();
  }
  EXPECT_EQ(turns, (std::vector{1, 17}));
}

TEST(Slots, AsManyStreamsAsStepsHaveTimeFor) {
  Pace pace;
  Turns::Clock::time_point now{std::chrono::seconds(1)};
  const auto steps = [&](int32_t streams, int count) {
    for (int i = 0; i < count; ++i) {
      const auto begin = now;
      now += std::chrono::microseconds(3'000 + 1'000 * streams);
      pace.step_done({streams, 0, begin}, now);
    }
  };
  steps(4, 20);
  EXPECT_EQ(pace.most_streams(0.060), INT32_MAX) << "what one more takes is not known";
  for (const int32_t streams : {2, 4, 6, 8}) steps(streams, 10);
  // 51 ms, of which 3 ms are for all and a step's least tokens of prompts take as much as streams alone do.
  const int32_t most = pace.most_streams(0.060);
  EXPECT_GE(most, 34);
  EXPECT_LE(most, 48);
  EXPECT_LT(pace.most_streams(0.030), most / 2 + 1);
  EXPECT_EQ(pace.most_streams(0), INT32_MAX);
  EXPECT_EQ(pace.most_streams(0.003), INT32_MAX) << "no step is so short";
}

TEST_F(Order, ClientsGetEqualSharesHoweverManyRequestsTheyHave) {
  for (int i = 0; i < 50; ++i) come(400, 1);
  EXPECT_EQ(read(100)->request.client, 1u);
  const auto one = come(400, 2);
  for (int i = 0; i < 8; ++i) read(100);
  EXPECT_EQ(one->posted, 400);  // a share of a half, and nothing for the time before it came
  for (int i = 0; i < 20; ++i) come(17, 2), come(90, 3);
  auto work = state.work;
  for (int i = 0; i < 60; ++i) read(17);
  int64_t sum = 0;
  for (auto& [client, own] : work) sum += own.served = state.work[client].served - own.served;
  for (auto& [client, own] : work)
    EXPECT_NEAR(static_cast<double>(own.served) / static_cast<double>(sum), 1.0 / 3, 0.03);
  count_tokens(state, *one, 0, 100);  // generating counts, too
  EXPECT_NE(read(10)->request.client, 2u);
}

// A machine whose steps take so many seconds.
struct Machine {
  double fixed = 0.02, per_decode = 0.0002, per_prompt = 0.001, per_context = 2e-7, noise = 0.05;
  std::mt19937 random{3};
  double seconds(int32_t decodes, int32_t prompts, int32_t context) {
    const double time = fixed + per_decode * decodes + prompts * (per_prompt + per_context * context);
    return time * (1 + noise * std::uniform_real_distribution(-1.0, 1.0)(random));
  }
};

class Streams : public testing::Test {
 protected:
  // Steps with `decodes` streams, beside a prompt of `size` tokens; returns their seconds.
  std::vector<double> run(int32_t decodes, int32_t size, double wanted = 0) {
    std::vector<double> steps;
    for (int32_t at = 0; at < size;) {
      const int32_t count = std::min(size - at, pace.prompt_tokens(decodes, 512, wanted));
      step(decodes, count, at);
      steps.push_back(last);
      at += count;
      longest_pause = count > 0 ? 0 : longest_pause + 1;
      EXPECT_LE(longest_pause, 1);
    }
    return steps;
  }
  void step(int32_t decodes, int32_t prompts, int32_t at) {
    last = machine.seconds(decodes, prompts, at);
    const auto posted = now;
    now += std::chrono::duration_cast<Pace::Clock::duration>(std::chrono::duration<double>(last));
    pace.step_done({decodes, prompts, posted}, now);
  }
  static double share(std::vector<double> steps, double q) {
    std::ranges::sort(steps);
    return steps[static_cast<std::size_t>(q * static_cast<double>(steps.size() - 1))];
  }

  Pace pace;
  Machine machine;
  Pace::Clock::time_point now{std::chrono::seconds(1)};
  double last = 0;
  int32_t longest_pause = 0;
};

TEST_F(Streams, PromptsBesideStreamsDoNotMakeStepsTwiceAsLong) {
  for (const double factor : {1.0, 5.0, 0.3}) {  // and it notices when the machine is another
    machine.fixed = 0.02 * factor, machine.per_prompt = 0.001 * factor, machine.per_context = 2e-7 * factor;
    const double alone = machine.fixed + 4 * machine.per_decode;
    for (std::size_t steps = 0; steps < 5 * Pace::kProbe;)
      steps += run(4, 2000).size();  // learns among prompts
    for (int i = 0; i < 10; ++i) {
      const auto steps = run(4, 2000);
      EXPECT_LE(share(steps, 0.99), 2 * alone) << factor;
      EXPECT_GE(share(steps, 0.5), 1.3 * alone) << factor;  // what there is, is used
    }
  }
}

TEST_F(Streams, ThePaceThatIsAskedForIsKept) {
  for (int i = 0; i < 8; ++i) step(4, 0, 0);
  run(4, 2000, 0.1);
  EXPECT_LE(share(run(4, 4000, 0.1), 0.99), 0.1);
  EXPECT_GE(share(run(4, 4000, 0.1), 0.5), 0.07);
  const auto steps = run(4, 800, 0.001);  // which cannot be
  EXPECT_LE(steps.size(), 800 / Pace::kLeast + 800 / Pace::kLeast / Pace::kProbe + 2);
}

TEST_F(Streams, WithoutStreamsAPromptHasTheWholeStep) {
  EXPECT_EQ(pace.prompt_tokens(0, 512, 0), 512);
  EXPECT_EQ(pace.prompt_tokens(0, 512, 0.001), 512);
  for (int i = 0; i < 8; ++i) step(4, 0, 0);
  // A clock that sees nothing opens the gates by doubling only.
  machine.per_prompt = machine.per_context = 0;
  for (int32_t most = Pace::kLeast; most < 512; most *= 2) {
    const int32_t prompts = pace.prompt_tokens(4, 512, 0);
    EXPECT_LE(prompts, 2 * most);
    step(4, prompts, 0);
  }
}

TEST_F(Streams, WithoutStreamsAStepEndsSoonForWhoComesNext) {
  for (const double fixed : {0.002, 0.02, 0.2}) {
    machine.fixed = fixed;
    for (int i = 0; i < 300; ++i) step(1 + i % 4, 0, 0);
    run(0, 4000);
    const auto steps = run(0, 4000);
    const double most = std::max(Pace::kTurn, Pace::kWorth * fixed) + fixed;
    EXPECT_LE(share(steps, 0.99), 1.4 * most) << fixed;  // what each takes rises along the prompt
    EXPECT_GE(share(steps, 0.5), 0.7 * std::min(most, fixed + 0.512)) << fixed;
  }
}

}  // namespace
}  // namespace ark::schedule::policies
