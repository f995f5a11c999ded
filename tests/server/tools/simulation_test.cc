// The scheduler in virtual time: step times from a table, traces, outcomes that are known, and one that must not change
// unnoticed.
#include "server/tools/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "base/error.h"
#include "server/json.h"
#include "server/schedule/scheduler.h"
#include "tests/fixtures.h"

namespace ark {
namespace {

// A step takes 1 ms, 0.1 ms more for each token of a prompt, 0.5 ms for each stream, and 1 us for each 10 tokens that
// are looked at.
MeasuredModel plain_model() {
  MeasuredModel model;
  model.limits = {
      .max_tokens = 256, .max_rows = 8, .max_slots = 8, .max_length = 4096, .page_size = 16, .pages = 2048};
  for (const int32_t n : {1, 2, 4, 8})
    for (const int32_t before : {0, 1000})
      model.decodes.push_back({n, before, 0.001 + 0.0005 * n + 1e-7 * n * (before + 1)});
  for (const int32_t n : {2, 16, 64, 256})
    for (const int32_t before : {0, 1000})
      model.prompts.push_back({n, before, 0.001 + 0.0001 * n + 1e-7 * n * (before + n / 2.0)});
  return model;
}

StepDescriptor step_of(std::vector<StepSequence> sequences) {
  StepDescriptor step;
  step.sequences = std::move(sequences);
  return step;
}

TEST(StepTimes, AreThoseOfTheTableAndStraightBetween) {
  const MeasuredModel model = plain_model();
  const StepTimes times(model.decodes, model.prompts);
  EXPECT_NEAR(times.seconds(step_of({{0, 0, 1, 300}, {1, 1, 1, 500}, {2, 2, 1, 0}})), 0.0025 + 803e-7, 1e-6);
  EXPECT_NEAR(times.seconds(step_of({{0, 0, 100, 200}})), 0.011 + 1e-7 * 100 * 250, 1e-6);
  EXPECT_NEAR(times.seconds(step_of({{0, 0, 500, 0}})), 0.051 + 1e-7 * 500 * 250, 1e-5);  // beyond it
  // A stream beside a prompt: a token, and what its row takes more than a prompt's token.
  EXPECT_NEAR(times.seconds(step_of({{0, 0, 1, 0}, {1, 1, 15, 0}})), 0.0026 + 0.0004, 1.1e-4);
}

TEST(StepTimes, AreReadAsTheyAreWritten) {
  const MeasuredModel model = plain_model(), again = measured_model(to_json(model), "x");
  EXPECT_EQ(to_json(again), to_json(model));
  EXPECT_EQ(again.limits.max_slots, 8);
  for (const char* wrong :
       {"[]", "{}", R"({"limits": {"max_tokens": 1}})", R"({"limits": 3, "decode": [[1, 1, 1]]})"})
    EXPECT_THROW(measured_model(parse_json(wrong), "x"), Error) << wrong;
  for (const char* rows : {"[]", "[[1, 1]]", "[[0, 1, 1]]", "[[1, 1, 0]]", "[[1, -1, 1]]", "[[1.5, 1, 1]]",
                           "[[1, 1, 1e300]]", "3"}) {
    Json json = to_json(model);
    json["decode"] = parse_json(rows);
    EXPECT_THROW(measured_model(json, "x"), Error) << rows;
  }
}

TEST(Trace, IsReadLineByLine) {
  const auto trace = read_trace(
      "{\"at\": 0, \"prompt_tokens\": 3, \"output_tokens\": 4}\n\n"
      "{\"at\": 1.5, \"prompt_tokens\": 3, \"output_tokens\": 4, \"group\": 7, "
      "\"shared_tokens\": 2, \"client\": 9}",
      "t");
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace[1].at, 1.5);
  EXPECT_EQ(trace[1].group, 7);
  EXPECT_EQ(trace[1].shared, 2);
  EXPECT_EQ(trace[1].client, 9u);
  for (const char* wrong :
       {"", "\n", "x", "[]", "{}", "{\"at\": -1, \"prompt_tokens\": 3, \"output_tokens\": 4}",
        "{\"at\": 0, \"prompt_tokens\": 0, \"output_tokens\": 4}",
        "{\"at\": 0, \"prompt_tokens\": 1.5, \"output_tokens\": 4}",
        "{\"at\": 0, \"prompt_tokens\": \"3\", \"output_tokens\": 4}",
        "{\"at\": 1, \"prompt_tokens\": 3, \"output_tokens\": 4}\n{\"at\": 0, \"prompt_tokens\": 3, "
        "\"output_tokens\": 4}"})
    EXPECT_THROW(read_trace(wrong, "t"), Error) << wrong;
}

TEST(Distribution, PercentilesAreWithinHalfAPercent) {
  std::mt19937 random(4);
  std::lognormal_distribution<double> values(-4, 1.5);
  std::vector<double> all;
  Distribution distribution;
  for (int i = 0; i < 10'000; ++i) {
    all.push_back(values(random));
    distribution.add(all.back());
  }
  std::ranges::sort(all);
  for (const double p : {1.0, 50.0, 90.0, 99.0, 100.0}) {
    const double exact = all[static_cast<std::size_t>(std::ceil(p / 100 * 10'000)) - 1];
    EXPECT_NEAR(distribution.percentile(p), exact, 0.006 * exact) << p;
  }
  EXPECT_EQ(Distribution().percentile(50), 0);
}

// One request alone: what its steps take, one after the other.
TEST(Simulation, OfOneRequestIsTheSumOfItsSteps) {
  const MeasuredModel model = plain_model();
  const StepTimes times(model.decodes, model.prompts);
  double first = 0, whole = 0;
  for (const auto& [count, before] : {std::pair(256, 0), std::pair(256, 256), std::pair(88, 512)})
    first += times.seconds(step_of({{0, 0, count, before}}));
  whole = first;
  for (int32_t length = 600; length < 600 + 19; ++length)
    whole += times.seconds(step_of({{0, 0, 1, length}}));
  const Simulated s = simulate({{.at = 5, .prompt = 600, .output = 20}}, model, {});
  EXPECT_NEAR(s.first_token.mean(), first, 1e-6);
  EXPECT_NEAR(s.whole.mean(), whole, 1e-6);
  EXPECT_NEAR(s.seconds, whole, 1e-6);
  EXPECT_EQ(s.between_tokens.count(), 19);
  EXPECT_NEAR(s.between_tokens.mean(), (whole - first) / 19, 1e-6);
  EXPECT_EQ(s.stats.generated_tokens, 20);
  EXPECT_EQ(s.shares.sum(), std::llround(s.whole.mean() * 1e9));
}

TEST(Simulation, KnowsThePoliciesThatAServerHas) {
  const MeasuredModel model = plain_model();
  std::vector<TracedRequest> trace;
  for (int i = 0; i < 40; ++i) {
    trace.push_back({.at = 0.05 * i, .prompt = 1000, .output = 20, .group = 1, .shared = 960});
    if (i % 8 == 0) trace.push_back({.at = 0.05 * i + 0.001, .prompt = 3000, .output = 2});
  }
  const Simulated all = simulate(trace, model, {});
  EXPECT_EQ(all.whole.count(), 45);
  EXPECT_EQ(all.refused, 0);
  EXPECT_EQ(all.stats.generated_tokens, 40 * 20 + 5 * 2);
  EXPECT_GE(all.stats.prefix_hits, 38 * 944);
  EXPECT_EQ(simulate(trace, model, {.prefix_cache = false}).stats.prefix_hits, 0);
  // Prompts beside streams, at their pace and at any.
  const double paced = all.between_tokens.percentile(99),
               any = simulate(trace, model, {.slo_itl = -1}).between_tokens.percentile(99);
  EXPECT_LT(paced, any / 2);
  // The shortest first.
  const double by_arrival = simulate(trace, model, {.prefix_cache = false, .shortest_first = false})
                                .first_token.mean(),
               by_length = simulate(trace, model, {.prefix_cache = false}).first_token.mean();
  EXPECT_LT(by_length, by_arrival);
  const Simulated tight = simulate(trace, model, {.max_queue = 1, .prefix_cache = false});
  EXPECT_GT(tight.refused, 0);
  EXPECT_EQ(tight.refused + tight.whole.count(), 45);
}

// Prompts and answers of all lengths, in bursts.
std::vector<TracedRequest> bursts(int count, double rate) {
  std::mt19937 random(3);
  std::vector<TracedRequest> trace;
  for (double at = 0; std::ssize(trace) < count;) {
    at += std::exponential_distribution(rate * (std::fmod(at, 6) < 2 ? 2.2 : 0.7))(random);
    const auto prompt = static_cast<int32_t>(std::lognormal_distribution(5.0, 0.8)(random));
    trace.push_back(
        {.at = at, .prompt = std::clamp(prompt, 4, 400), .output = static_cast<int32_t>(8 << random() % 5)});
  }
  return trace;
}

// The options of a server that is given these goals, beside fixed numbers of sequences and of tokens a step.
TEST(Simulation, GoalsAreReachedMoreOftenThanByAnyFixedSetting) {
  const MeasuredModel model = plain_model();
  const Goals goals{0.2, 0.012};
  schedule::SchedulerOptions own{.slo_itl = goals.next, .slo_ttft = goals.first};
  const Simulated feasible = simulate(bursts(400, 4), model, own, goals);
  EXPECT_GE(feasible.good, 396) << "late " << feasible.late << ", slow " << feasible.slow;
  for (const double rate : {10.0, 18.0}) {
    const auto trace = bursts(400, rate);
    int64_t most = 0;
    for (const int32_t sequences : {4, 8})
      for (const int32_t tokens : {32, 64, 128})
        for (const bool shortest : {false, true})
          most = std::max(most, simulate(trace, model,
                                         {.max_sequences = sequences,
                                          .max_batched_tokens = tokens,
                                          .slo_itl = -1,
                                          .shortest_first = shortest},
                                         goals)
                                    .good);
    const Simulated s = simulate(trace, model, own, goals);
    EXPECT_GE(s.good, most) << rate << ": late " << s.late << ", slow " << s.slow;
    EXPECT_LE(s.slow, 8) << rate;
  }
}

// Steps that take their time in ours: what a runner does that has nothing else to do.
class RealTimeRunner : public StepRunner {
 public:
  using Clock = std::chrono::steady_clock;
  explicit RealTimeRunner(const MeasuredModel& model)
      : limits_(model.limits), times_(model.decodes, model.prompts) {}
  const RunnerLimits& limits() const override { return limits_; }
  uint64_t post(const StepDescriptor& step) override {
    const auto time = std::chrono::nanoseconds(std::llround(times_.seconds(step) * 1e9));
    busy_until_ = std::max(busy_until_, Clock::now()) + time;
    queue_.emplace_back(busy_until_, step.rows.size());
    return ++posted_;
  }
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override {
    if (queue_.empty()) return std::nullopt;
    const auto [end, rows] = queue_.front();
    std::this_thread::sleep_until(std::min(end, Clock::now() + timeout));
    if (Clock::now() < end) return std::nullopt;
    queue_.pop_front();
    StepResult result{++done_};
    for (std::size_t i = 0; i < rows; ++i) result.rows.push_back({.token = 1});
    return result;
  }
  void abort(const std::string&) override {}

 private:
  const RunnerLimits limits_;
  const StepTimes times_;
  std::deque<std::pair<Clock::time_point, std::size_t>> queue_;
  Clock::time_point busy_until_{};
  uint64_t posted_ = 0, done_ = 0;
};

// The scheduler's thread over such steps comes to what the simulation says. It takes ten seconds, and a machine that
// does little else.
TEST(Simulation, IsWhatTheSchedulersThreadDoes) {
  if (!std::getenv("ARK_FULL")) GTEST_SKIP() << "only with ARK_FULL=1";
  MeasuredModel model = plain_model();
  model.limits.vocabulary = 1 << 20;
  std::mt19937 random(8);
  std::vector<TracedRequest> trace;
  double at = 0;
  for (int i = 0; i < 200; ++i) {
    at += static_cast<double>(random() % 1000) / 1e4;
    trace.push_back({.at = at,
                     .prompt = static_cast<int32_t>(random() % 8 ? 20 + random() % 200 : 2000),
                     .output = static_cast<int32_t>(5 + random() % 40)});
  }
  const schedule::SchedulerOptions options{.prefix_cache = false, .max_drafts = 0};
  const Simulated predicted = simulate(trace, model, options);
  Distribution first, whole;
  std::mutex mutex;
  {
    RealTimeRunner runner(model);
    schedule::Scheduler scheduler(runner, options,
                                  [&](const std::shared_ptr<const schedule::Record>& record) {
                                    const std::lock_guard lock(mutex);
                                    first.add(static_cast<double>(record->first_ns()) * 1e-9);
                                    whole.add(static_cast<double>(record->total_ns()) * 1e-9);
                                  });
    const auto begin = RealTimeRunner::Clock::now();
    for (const TracedRequest& r : trace) {
      std::this_thread::sleep_until(begin + std::chrono::nanoseconds(std::llround(r.at * 1e9)));
      scheduler.submit(
          {.prompt = std::vector<int32_t>(static_cast<std::size_t>(r.prompt), 1), .max_tokens = r.output});
    }
    EXPECT_TRUE(scheduler.drain(std::chrono::seconds(60)));
  }
  ASSERT_EQ(whole.count(), predicted.whole.count());
  for (const double p : {50.0, 90.0, 99.0}) {
    const double real_first = first.percentile(p), real_whole = whole.percentile(p);
    EXPECT_NEAR(predicted.first_token.percentile(p), real_first, 0.15 * real_first + 0.001) << p;
    EXPECT_NEAR(predicted.whole.percentile(p), real_whole, 0.15 * real_whole + 0.001) << p;
    std::printf("p%g: first token %.2f ms, predicted %.2f; whole %.2f, predicted %.2f\n", p, real_first * 1e3,
                predicted.first_token.percentile(p) * 1e3, real_whole * 1e3,
                predicted.whole.percentile(p) * 1e3);
  }
}

// Same trace, same policies, same figures: a policy that changes them says so here.
void compare_with_golden(const std::string& name, const schedule::SchedulerOptions& options,
                         const Goals& goals) {
  std::mt19937 random(11);
  std::string text;
  double at = 0;
  for (int i = 0; i < 400; ++i) {
    at += static_cast<double>(random() % 1000) / 4e3;
    const bool is_long = random() % 10 == 0;
    const Json line = {{"at", at},
                       {"prompt_tokens", is_long ? 2000 + random() % 1500 : 20 + random() % 200},
                       {"output_tokens", 1 + random() % 60},
                       {"group", random() % 3},
                       {"shared_tokens", random() % 2 ? 64 : 0},
                       {"client", random() % 2}};
    text += to_text(line) + "\n";
  }
  Json figures = to_json(simulate(read_trace(text, "t"), plain_model(), options, goals));
  Json rounded = Json::object();
  for (const auto& [name, value] : figures.items())
    if (value.is_number()) rounded[name] = std::round(value.get<double>() * 100) / 100;
  const std::filesystem::path file = test::source_root() / "tests" / "golden" / name;
  if (std::getenv("ARK_UPDATE_GOLDEN")) std::ofstream(file) << to_text(rounded, 1) << "\n";
  std::ifstream in(file);
  const Json golden = parse_json_or_discard(std::string(std::istreambuf_iterator<char>(in), {}));
  EXPECT_EQ(to_text(rounded, 1), to_text(golden, 1))
      << "look at the difference; if it is meant, run with ARK_UPDATE_GOLDEN=1";
}

TEST(Simulation, GoldenTrace) { compare_with_golden("schedule.json", {}, {}); }

TEST(Simulation, GoldenTraceWithGoals) {
  compare_with_golden("schedule_goals.json", {.slo_itl = 0.012, .slo_ttft = 0.2}, {0.2, 0.012});
}

}  // namespace
}  // namespace ark
