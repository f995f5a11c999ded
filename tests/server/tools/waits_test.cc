// How long requests wait for a first token, in virtual time: the bounds that docs/policy.md states, and who goes first.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "server/schedule/scheduler.h"
#include "server/tools/simulation.h"

namespace ark {
namespace {

// As a small decoder on two cores: a step of 512 tokens takes 0.36 s.
MeasuredModel small_decoder() {
  MeasuredModel model;
  model.limits = {
      .max_tokens = 512, .max_rows = 64, .max_slots = 64, .max_length = 4096, .page_size = 16, .pages = 8192};
  for (const int32_t n : {1, 8, 64}) model.decodes.push_back({n, 0, 0.0027 + 0.00105 * n});
  for (const int32_t n : {1, 64, 512}) model.prompts.push_back({n, 0, 0.0027 + 0.0007 * n});
  return model;
}

// So many requests a second like `like`.
std::vector<TracedRequest> arrivals(double rate, int count, TracedRequest like) {
  std::mt19937 random(1);
  std::vector<TracedRequest> trace;
  for (int i = 0; i < count; ++i) {
    like.at += std::exponential_distribution(rate)(random);
    trace.push_back(like);
  }
  return trace;
}

// Short prompts among some long ones, which are nine tenths of all tokens: who comes next waits for a step, not for a
// prompt.
TEST(Simulation, ShortPromptsDoNotWaitForLongOnes) {
  std::mt19937 random(5);
  std::vector<TracedRequest> trace;
  double at = 0;
  for (int i = 0; i < 300; ++i) {
    at += std::exponential_distribution(4.0)(random);
    trace.push_back({.at = at, .prompt = i % 10 == 4 ? 1800 : 20, .output = 4});
  }
  const MeasuredModel model = small_decoder();
  // All but a tenth are short: at 88 % there is a slow one of these.
  const auto first = [&](const schedule::SchedulerOptions& options) {
    return simulate(trace, model, options).first_token.percentile(88);
  };
  const double ours = first({.prefix_cache = false});
  EXPECT_LT(3 * ours, first({.prefix_cache = false, .slo_itl = -1, .shortest_first = false}));
  EXPECT_LT(3 * ours, first({.prefix_cache = false, .slo_itl = -1}));
}

// Work: a token that is read counts one, one that is generated two.
double work_of(const TracedRequest& r) { return r.prompt + 2.0 * r.output; }

constexpr double kPrice = 0.001;  // seconds that small_decoder() needs for a unit of work at most

// The bound that docs/policy.md states, of each request; the greatest part of it that one waits.
double part_of_bound(const std::vector<TracedRequest>& trace, const schedule::SchedulerOptions& options,
                     const Simulated& s) {
  EXPECT_EQ(s.refused, 0);
  double dearest = 0, worst = 0;
  std::set<uint32_t> clients;
  for (const TracedRequest& r : trace) dearest = std::max(dearest, work_of(r)), clients.insert(r.client);
  const double slots = dearest * options.max_sequences;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    double before = trace[i].prompt;
    for (std::size_t j = 0; j < i; ++j)
      if (trace[j].client == trace[i].client && trace[j].at + s.requests[j].whole > trace[i].at)
        before += work_of(trace[j]);
    const double work = slots + (options.slo_ttft > 0 ? 16 * before : before + 16.0 * trace[i].prompt);
    const double bound = options.slo_ttft + static_cast<double>(clients.size()) * work * kPrice;
    EXPECT_LE(s.requests[i].first, bound) << "request " << i << " at " << trace[i].at;
    worst = std::max(worst, s.requests[i].first / bound);
  }
  return worst;
}

// One long prompt among short ones that are more than the machine can read, and it can be in time by no means.
TEST(Simulation, ALatePromptIsReadAllTheSame) {
  const schedule::SchedulerOptions goals{
      .max_sequences = 64, .max_queue = 10'000, .slo_itl = 0.060, .slo_ttft = 0.5};
  auto trace = arrivals(14, 1500, {.prompt = 150, .output = 4});
  const auto at =
      trace.insert(trace.begin() + 70, {.at = trace[69].at, .prompt = 2000, .output = 4}) - trace.begin();
  const Simulated s = simulate(trace, small_decoder(), goals, {0.5, 0.060});
  EXPECT_LT(s.requests[static_cast<std::size_t>(at)].first, 100);
  EXPECT_LE(part_of_bound(trace, goals, s), 1);
  EXPECT_GE(s.good, 300);  // which costs little: those that can be in time still are
}

// One long prompt where short prompts with long answers have all slots.
TEST(Simulation, ALongPromptGetsASlotWhereAnswersTakeTheTime) {
  auto trace = arrivals(3, 900, {.prompt = 20, .output = 200});
  const auto at =
      trace.insert(trace.begin() + 150, {.at = trace[149].at, .prompt = 2000, .output = 200}) - trace.begin();
  schedule::SchedulerOptions options{.max_sequences = 4, .max_queue = 10'000};
  const Simulated s = simulate(trace, small_decoder(), options);
  const double ours = s.requests[static_cast<std::size_t>(at)].first;
  EXPECT_LE(part_of_bound(trace, options, s), 1);
  options.shortest_first = false;
  const Simulated by_arrival = simulate(trace, small_decoder(), options);
  EXPECT_LT(ours, 1.25 * by_arrival.first_token.percentile(100));
}

// Of prompts that wait for slots, long ones that are almost all cached are the shortest.
TEST(Simulation, CachedPromptsAreShortWhileTheyWaitForASlot) {
  auto trace = arrivals(3.2, 1000, {.at = 5, .prompt = 300, .output = 60});
  for (std::size_t i = 0; i < trace.size(); i += 3)
    trace[i].prompt = 2020, trace[i].group = 1, trace[i].shared = 2000;
  trace.insert(trace.begin(), {.prompt = 2020, .output = 2, .group = 1, .shared = 2000});
  schedule::SchedulerOptions options{.max_sequences = 4, .max_queue = 10'000};
  const Simulated by_length = simulate(trace, small_decoder(), options);
  options.slo_itl = 0.060, options.slo_ttft = 0.5;
  const Simulated goals = simulate(trace, small_decoder(), options, {0.5, 0.060});
  options.slo_itl = options.slo_ttft = 0, options.shortest_first = false;
  const Simulated by_arrival = simulate(trace, small_decoder(), options, {0.5, 0.060});
  EXPECT_LE(by_length.first_token.percentile(99), 1.1 * by_arrival.first_token.percentile(99));
  EXPECT_LT(by_length.first_token.percentile(50), by_arrival.first_token.percentile(50));
  EXPECT_GT(goals.good, by_arrival.good);
}

// Whatever comes, for whom, and with whichever goals.
TEST(Simulation, EveryWaitIsBounded) {
  double worst = 0;
  for (unsigned seed = 0; seed < 24; ++seed) {
    std::mt19937 random(seed);
    const double rate = 2 + seed % 3 * 4;
    std::vector<TracedRequest> trace;
    for (double at = 0; trace.size() < 400;) {
      at += std::exponential_distribution(rate)(random);
      const bool is_long = random() % 20 == 0, is_shared = random() % 4 == 0;
      trace.push_back({.at = at,
                       .prompt = static_cast<int32_t>(is_long ? 1000 + random() % 1500 : 20 + random() % 200),
                       .output = static_cast<int32_t>(1 + random() % (seed % 2 ? 200 : 20)),
                       .group = 1,
                       .shared = is_shared ? 800 : 0,
                       .client = static_cast<uint32_t>(random() % 10 ? 0 : random() % (1 + seed % 3))});
    }
    schedule::SchedulerOptions options{.max_sequences = seed % 4 < 2 ? 4 : 64, .max_queue = 10'000};
    if (seed % 8 >= 4) options.slo_itl = 0.060, options.slo_ttft = 0.5;
    worst = std::max(worst, part_of_bound(trace, options, simulate(trace, small_decoder(), options)));
  }
  EXPECT_GT(worst, 0.1) << "the bound says nothing";
}

// Two keys that both ask for more than their half, one of them for four times as much.
TEST(Simulation, KeysHaveEqualShares) {
  std::mt19937 random(6);
  std::vector<TracedRequest> trace;
  for (double at = 0; trace.size() < 1500;) {
    at += std::exponential_distribution(20.0)(random);
    trace.push_back({.at = at,
                     .prompt = static_cast<int32_t>(20 + random() % 300),
                     .output = static_cast<int32_t>(1 + random() % 30),
                     .client = random() % 5 ? 1u : 2u});
  }
  const Simulated s = simulate(trace, small_decoder(), {.max_sequences = 8, .max_queue = 10'000});
  double all = 0, second = 0;  // of those that were done while requests came
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace[i].at + s.requests[i].whole > trace.back().at) continue;
    all += work_of(trace[i]);
    if (trace[i].client == 2) second += work_of(trace[i]);
  }
  EXPECT_NEAR(second / all, 0.5, 0.05);
}

}  // namespace
}  // namespace ark
