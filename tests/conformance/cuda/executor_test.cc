// What a device executor must do beside a CPU executor's suite (tests/conformance/engine): the same tokens as
// the oracle, logits within a bound, and equal bytes wherever only schedule, batching, leases or waits
// differ.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/ir/rowwise_host.h"
#include "engine/program/kv_codec.h"
#include "tests/conformance/cuda/test_gpu.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

// Every sum of the model is f32 over at most some hundred products; both sides round each at most once. Two
// ways of adding n terms differ by at most 2 n 2^-24 of the sum of their sizes; errors of the layers before
// are carried on with gains of about one. 2^-24 * 2 * 128 terms * 4 (projections a block) * 2 blocks *
// safety 2.
constexpr float kBound = 2.5e-4f;

void expect_near(const Rows& expected, const Rows& got, float bound = kBound) {
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(best(expected[i]), best(got[i])) << "row " << i;
    float scale = 1;
    for (float v : expected[i]) scale = std::max(scale, std::fabs(v));
    for (std::size_t j = 0; j < expected[i].size(); ++j)
      ASSERT_TRUE(std::fabs(expected[i][j] - got[i][j]) <= bound * scale)
          << "row " << i << " logit " << j << ": " << expected[i][j] << " and " << got[i][j];
  }
}

class DeviceExecutor : public ::testing::Test {
 protected:
  static RunnerSetup device(int ranks, const TestSchedule& schedule = {}) {
    RunnerSetup setup;
    setup.ranks = ranks;
    setup.max_tokens = 24;
    setup.options.gpu = test_gpu(schedule);
    setup.options.device.processors = test_processors();
    setup.options.step_deadline = std::chrono::seconds(60);
    return setup;
  }
  static RunnerSetup oracle() {
    RunnerSetup setup;
    setup.options.lockstep = true;
    setup.options.threads = 1;
    return setup;
  }
};

TEST_F(DeviceExecutor, GivesTheOraclesTokensAndNearlyItsLogits) {
  const auto prompt = random_tokens(13, 1);
  for (const DType weight : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool gpt2 : {false, true}) {
      const DecoderModel model = gpt2_or_llama(gpt2, weight);
      const Rows expected = run_greedy(*make_runner(model, oracle()), prompt, 64, 3);
      for (const int ranks : {1, 2}) {
        // Each type and each model by one and by two.
        if (weight != DType::kF32 && gpt2 == (ranks == 1) && !std::getenv("ARK_FULL")) continue;
        SCOPED_TRACE((gpt2 ? "gpt2, ranks " : "llama, ranks ") + std::to_string(ranks) + ", dtype " +
                     std::to_string(static_cast<int>(weight)));
        const auto runner = make_runner(model, device(ranks));
        expect_near(expected, run_greedy(*runner, prompt, 24, 3));
        ASSERT_NE(runner->device(), nullptr);
        EXPECT_GE(runner->device()->launches(), 1);
      }
    }
  }
}

// The same rounding as the CPU's; but of a number that both have nearly alike each may take another neighbour: a unit
// in the last place of a key or value, and what is rounded differs by no more than that on the whole.
TEST_F(DeviceExecutor, KeysAndValuesInFewerBitsGiveTheOraclesTokens) {
  const auto prompt = random_tokens(13, 5);
  for (const KvCodec& codec : kv_codecs()) {
    if (codec.type == DType::kF32) continue;
    SCOPED_TRACE(codec.name);
    const DecoderModel model = gpt2_or_llama(codec.type == DType::kF8E4M3);
    RunnerSetup cpu = oracle(), gpu = device(2, {.seed = 3, .detector = codec.type == DType::kI8});
    const Rows exact = run_greedy(*make_runner(model, cpu), prompt, 64, 2);
    cpu.kv_dtype = gpu.kv_dtype = codec.type;
    const Rows expected = run_greedy(*make_runner(model, cpu), prompt, 64, 2);
    EXPECT_FALSE(same_bits(exact, expected)) << "nothing was rounded";
    const auto runner = make_runner(model, gpu);
    const Rows whole = run_greedy(*runner, prompt, 24, 2);
    const bool has_11_bits = codec.type == DType::kF16, has_4_bits = codec.type == DType::kF8E4M3;
    expect_near(expected, whole, kBound + (has_11_bits ? 0x1p-10f : has_4_bits ? 0x1p-3f : 0x1p-7f));
    EXPECT_TRUE(same_bits(whole, run_greedy(*runner, prompt, 5, 2))) << "in chunks";
  }
}

// Operators over rows of features, as the softmax of routers of experts: whole rows at a time, whatever runs beside.
TEST_F(DeviceExecutor, OperatorsOverRowsGiveTheOraclesTokens) {
  const auto prompt = random_tokens(13, 7);
  TokenGraphOptions o;
  o.kv_heads = 2;
  o.router = TokenGraphOptions::Router::kRowwise;
  for (const rowwise::Row& row : rowwise::rows()) {
    o.router_op = row.op;
    const DecoderModel model = llama_tokens(o);
    const Rows expected = run_greedy(*make_runner(model, oracle()), prompt, 64, 2);
    // The way of an operator through a launch does not depend on which it is.
    for (const int ranks : row.op == Op::kSoftmax ? std::vector{1, 2} : std::vector{2}) {
      const auto runner = make_runner(model, device(ranks, {.seed = 5, .detector = ranks == 2}));
      const Rows whole = run_greedy(*runner, prompt, 24, 2);
      expect_near(expected, whole);
      EXPECT_TRUE(same_bits(whole, run_greedy(*runner, prompt, 5, 2))) << row.name << " " << ranks;
    }
  }
}

TEST_F(DeviceExecutor, PrefillInChunksGivesEqualBytes) {
  const auto runner = make_runner(gpt2_or_llama(false), device(2));
  const auto prompt = random_tokens(21, 2);
  const Rows whole = run_greedy(*runner, prompt, 24, 1);
  for (const int32_t chunk : {1, 7, 16})
    EXPECT_TRUE(same_bits(whole, run_greedy(*runner, prompt, chunk, 1))) << chunk;
}

// Rows of weights that are no multiple of those that tensor cores take: by multiply-adds, in the order that these read.
TEST_F(DeviceExecutor, QuantizedWeightsOfOddHeightsGiveTheOraclesTokens) {
  const auto prompt = random_tokens(13, 9);
  for (const BlockTerms terms : {BlockTerms::kZeros, BlockTerms::kOffsets16}) {
    TokenGraphOptions o;
    o.bits = 4, o.block = 32, o.terms = terms, o.intermediate = 56;
    const DecoderModel model = llama_tokens(o);
    expect_near(run_greedy(*make_runner(model, oracle()), prompt, 64, 1),
                run_greedy(*make_runner(model, device(1)), prompt, 24, 1));
  }
}

// Codes with scales and zeros, on tensor cores and, where blocks are smaller than 16 rows, by multiply-adds;
// whatever the chunks of the prompt.
TEST_F(DeviceExecutor, QuantizedWeightsGiveTheOraclesTokens) {
  const auto prompt = random_tokens(13, 9);
  using enum BlockTerms;
  for (const auto& [bits, terms] : {std::pair{4, kZeros},
                                    {8, kZeros},
                                    {4, kOffsets16},
                                    {8, kOffsets16},
                                    {4, kScales16},
                                    {8, kScales16}}) {
    for (const bool gpt2 : {false, true}) {
      if (gpt2 == (terms == kOffsets16) && !std::getenv("ARK_FULL")) continue;
      const int ranks = 1 + (bits / 4 + gpt2) % 2;  // each model and each kind of codes by one and by two
      TokenGraphOptions o;
      o.bits = bits, o.terms = terms, o.tied = gpt2;
      const DecoderModel model = gpt2 ? gpt2_tokens(o) : llama_tokens(o);
      const Rows expected = run_greedy(*make_runner(model, oracle()), prompt, 64, 1);
      SCOPED_TRACE((gpt2 ? "gpt2, ranks " : "llama, ranks ") + std::to_string(ranks) + ", bits " +
                   std::to_string(bits));
      const TestSchedule schedule{.seed = static_cast<uint64_t>(bits), .detector = ranks == 2};
      const auto runner = make_runner(model, device(ranks, schedule));
      const Rows whole = run_greedy(*runner, prompt, 24, 1);
      expect_near(expected, whole);
      EXPECT_TRUE(same_bits(whole, run_greedy(*runner, prompt, 5, 1)));
    }
  }
}

TEST_F(DeviceExecutor, BarriersGiveTheBytesThatCountersGive) {
  const auto prompt = random_tokens(9, 3);
  for (const bool gpt2 : {false, true}) {
    RunnerSetup barrier = device(2);
    barrier.options.barrier = true;
    const Rows counters = run_greedy(*make_runner(gpt2_or_llama(gpt2), device(2)), prompt, 5, 2);
    EXPECT_TRUE(same_bits(counters, run_greedy(*make_runner(gpt2_or_llama(gpt2), barrier), prompt, 5, 2)));
  }
}

TEST_F(DeviceExecutor, LeasesAndCounterBasesChangeNothing) {
  const auto prompt = random_tokens(6, 4);
  const Rows expected = run_greedy(*make_runner(gpt2_or_llama(false), device(2)), prompt, 3, 4);
  for (const int64_t lease : {1, 3}) {
    RunnerSetup leased = device(2);
    leased.options.lease = lease;
    leased.options.counter_base = 0xfffffff8;
    EXPECT_TRUE(same_bits(expected, run_greedy(*make_runner(gpt2_or_llama(false), leased), prompt, 3, 4)))
        << lease;
  }
}

// The emulator has none: that it says so shows that the option gets to the launch.
TEST_F(DeviceExecutor, CudaGraphsChangeNothing) {
  const auto prompt = random_tokens(6, 4);
  RunnerSetup graph = device(2);
  graph.options.lease = 1;
  graph.options.device.as_graph = true;
  const auto runner = make_runner(gpt2_or_llama(false), graph);
  Rows replayed;
  try {
    replayed = run_greedy(*runner, prompt, 3, 4);
  } catch (const Error& error) {
    const std::string why = error.what();
    if (graph.options.gpu->info().is_emulated) {
      EXPECT_EQ(why, "an emulated GPU has no CUDA graphs");
      return;
    }
    // An old driver, or MPS.
    const bool is_refused = why.find("has no function cuGraph") != std::string::npos ||
                            why.find("refuses the loop as a") != std::string::npos;
    ASSERT_TRUE(is_refused) << why;
    GTEST_SKIP() << why;
  }
  EXPECT_FALSE(graph.options.gpu->info().is_emulated);
  const Rows expected = run_greedy(*make_runner(gpt2_or_llama(false), device(2)), prompt, 3, 4);
  EXPECT_TRUE(same_bits(expected, replayed));
  EXPECT_EQ(runner->device()->launches(), 6);  // two steps of the prompt, four more
}

// Counts of processors that are through with a message start again from 0, for any number of them.
TEST_F(DeviceExecutor, ThreeProcessorsGiveTheBytesThatTwoGive) {
  const auto prompt = random_tokens(6, 4);
  RunnerSetup three = device(2);
  if (three.options.device.processors != 0) three.options.device.processors = 3;
  const Rows expected = run_greedy(*make_runner(gpt2_or_llama(false), device(2)), prompt, 3, 4);
  EXPECT_TRUE(same_bits(expected, run_greedy(*make_runner(gpt2_or_llama(false), three), prompt, 3, 4)));
}

// Prefill chunks mixed with decode at random, sequences preempted and computed again on other pages, under
// another schedule of the threads each time: the same tokens.
TEST_F(DeviceExecutor, RandomSchedulesChangeNothing) {
  const DecoderModel model = gpt2_or_llama(false);
  constexpr int32_t kExtra = 2;
  std::vector<std::vector<int32_t>> prompts, expected;
  for (int i = 0; i < 3; ++i) prompts.push_back(random_tokens(2 + 4 * i, 10 + static_cast<uint32_t>(i)));
  const auto alone = make_runner(model, oracle());
  for (const auto& prompt : prompts) {
    expected.emplace_back();
    for (const auto& row : run_greedy(*alone, prompt, 64, kExtra)) expected.back().push_back(best(row));
  }
  for (int n = 1; n <= test_schedules(); ++n) {
    const auto seed = static_cast<uint32_t>(n);
    RunnerSetup setup = device(1 + n % 2, {.seed = seed, .detector = true});
    if (n % 4 == 1) setup.link = Link::kPosted;
    const auto runner = make_runner(model, setup);
    std::mt19937 random(seed);
    std::vector<Sequence> live;
    std::vector<std::vector<int32_t>> got(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i)
      live.push_back({.slot = static_cast<int32_t>((i * 3 + seed) % 8), .tokens = prompts[i]});
    int32_t next_page = static_cast<int32_t>(random() % 50);
    while (std::any_of(got.begin(), got.end(), [](const auto& g) { return g.size() <= kExtra; })) {
      StepDescriptor step;
      std::vector<std::size_t> rows;
      for (std::size_t i = 0; i < live.size(); ++i) {
        Sequence& s = live[i];
        if (got[i].size() > kExtra || random() % 4 == 0) continue;
        if (random() % 12 == 0) s.cached = 0, s.pages.clear();
        const auto left = static_cast<int32_t>(s.tokens.size()) - s.cached;
        const int32_t count = std::min(
            8, random() % 2 ? left : 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(left)));
        add_chunk(step, s, count, 4, next_page, count == left, kWantToken);
        if (count == left) rows.push_back(i);
      }
      if (step.tokens.empty()) continue;
      runner->post(step);
      const StepResult result = wait_for(*runner);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        got[rows[r]].push_back(result.rows[r].token);
        live[rows[r]].tokens.push_back(result.rows[r].token);
      }
    }
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], expected[i]) << "schedule " << n << " sequence " << i;
  }
}

TEST_F(DeviceExecutor, TwoStepsInFlightFeedTokensBackOnTheDevice) {
  const DecoderModel model = gpt2_or_llama(true);
  const auto runner = make_runner(model, device(2));
  const auto prompt = random_tokens(6, 5);
  std::vector<int32_t> expected, got;
  for (const auto& row : run_greedy(*make_runner(model, oracle()), prompt, 64, 5))
    expected.push_back(best(row));
  Sequence s{.slot = 3, .tokens = prompt};
  int32_t next_page = 64;
  StepDescriptor step;
  add_chunk(step, s, 6, 4, next_page, true, kWantToken);
  runner->post(step);
  for (int i = 0; i < 5; ++i) {
    StepDescriptor decode;
    s.tokens.push_back(kFeedbackToken);
    add_chunk(decode, s, 1, 4, next_page, true, kWantToken);
    runner->post(decode);  // before the token that it feeds has been seen
    got.push_back(wait_for(*runner).rows[0].token);
  }
  got.push_back(wait_for(*runner).rows[0].token);
  EXPECT_EQ(got, expected);
}

// Sampled, with penalties, bias, filters and logprobs: what the CPU samples from the same logits.
TEST_F(DeviceExecutor, SamplesAsTheCpuDoes) {
  const DecoderModel model = gpt2_or_llama(false);
  std::vector<std::vector<RowResult>> results;
  for (const bool on_device : {false, true}) {
    const auto runner = make_runner(model, on_device ? device(2) : oracle());
    std::vector<RowResult>& rows = results.emplace_back();
    Sequence s{.slot = 1, .tokens = random_tokens(5, 7)};
    int32_t next_page = 0;
    for (int i = 0; i < 5; ++i) {
      StepDescriptor step;
      const SamplingParams sampling{.temperature = 0.9f,
                                    .top_p = 0.9f,
                                    .top_k = 40,
                                    .presence_penalty = 0.3f,
                                    .repetition_penalty = 1.2f,
                                    .seed = 77};
      const auto left = static_cast<int32_t>(s.tokens.size()) - s.cached;
      add_chunk(step, s, left, 4, next_page, true, kWantToken | kWantLogprob, sampling);
      step.rows[0].top = 3;
      step.rows[0].prompt_length = 5;
      step.bias = {{4, 1.5f}, {9, -2.0f}};
      step.rows[0].bias_count = 2;
      if (i % 2) {  // each second token of the first 64; the vocabulary has more
        step.masks = {0x55555555u, 0x55555555u};
        step.rows[0].mask_words = 2;
      }
      runner->post(step);
      rows.push_back(wait_for(*runner).rows[0]);
      s.tokens.push_back(rows.back().token);
    }
  }
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    const RowResult &a = results[0][i], &b = results[1][i];
    EXPECT_EQ(a.token, b.token) << i;
    EXPECT_TRUE(i % 2 == 0 || (a.token < 64 && a.token % 2 == 0)) << a.token;
    EXPECT_NEAR(a.logprob, b.logprob, 1e-3);
    ASSERT_EQ(a.top.size(), b.top.size());
    for (std::size_t t = 0; t < a.top.size(); ++t) {
      EXPECT_EQ(a.top[t].first, b.top[t].first);
      EXPECT_NEAR(a.top[t].second, b.top[t].second, 1e-3);
    }
  }
}

// A bias makes one logit NaN or infinite, wherever it stands in the row.
TEST_F(DeviceExecutor, OneLogitThatIsNotFiniteEndsThePick) {
  const DecoderModel model = gpt2_or_llama(false);
  const auto runner = make_runner(model, device(2));
  Sequence s{.slot = 1, .tokens = random_tokens(5, 7)};
  int32_t next_page = 0;
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const int32_t at : {0, 1, 50, 99, 100})
      for (const float temperature : {0.f, 0.9f}) {
        StepDescriptor step;
        if (s.cached == 5) s.cached = 4;
        add_chunk(step, s, 5 - s.cached, 4, next_page, true, kWantToken | kWantLogprob,
                  {.temperature = temperature, .top_k = 40});
        step.rows[0].top = 3;
        step.bias = {{at, bad}};
        step.rows[0].bias_count = 1;
        runner->post(step);
        const RowResult row = wait_for(*runner).rows[0];
        const bool is_mask = bad == -INFINITY;
        EXPECT_EQ(row.token == -1, !is_mask) << bad << " at " << at;
        EXPECT_EQ(std::isnan(row.logprob), !is_mask) << bad << " at " << at;
        EXPECT_EQ(row.top.size(), is_mask ? 3u : 0u) << bad << " at " << at;
      }
}

TEST_F(DeviceExecutor, CopiesPagesBeforeTheStep) {
  const auto runner = make_runner(gpt2_or_llama(false), device(2));
  const auto prompt = random_tokens(8, 8);
  const Rows expected = run_greedy(*runner, prompt, 24, 0);
  Sequence first{.slot = 1, .tokens = {prompt.begin(), prompt.begin() + 4}};
  int32_t page = 40;
  StepDescriptor step;
  add_chunk(step, first, 4, 4, page, false, 0);
  runner->post(step);
  wait_for(*runner);
  Sequence second{.slot = 2, .tokens = prompt, .cached = 4, .pages = {50}};
  StepDescriptor next;
  next.page_deltas.push_back({2, 0, 50});
  next.page_copies.push_back({40, 50});
  page = 51;
  add_chunk(next, second, 4, 4, page, true, kWantLogits);
  runner->post(next);
  EXPECT_TRUE(same_bits(expected, {wait_for(*runner).rows[0].logits}));
}

TEST_F(DeviceExecutor, ParksWhenIdleAndGoesOn) {
  const auto runner = make_runner(gpt2_or_llama(false), device(1));
  const auto prompt = random_tokens(5, 6);
  const Rows expected = run_greedy(*runner, prompt, 24, 1);
  for (int i = 0; i < 1000 && !runner->is_parked(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(runner->is_parked());
  EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt, 24, 1)));
}

TEST_F(DeviceExecutor, TwoModelsShareTheGpu) {
  const RunnerSetup setup = device(1);
  const auto prompt = random_tokens(5, 6);
  const auto a = make_runner(gpt2_or_llama(false), setup), b = make_runner(gpt2_or_llama(true), setup);
  const Rows expected_a = run_greedy(*a, prompt, 24, 1), expected_b = run_greedy(*b, prompt, 24, 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits(expected_a, run_greedy(*a, prompt, 24, 1)));
    EXPECT_TRUE(same_bits(expected_b, run_greedy(*b, prompt, 24, 1)));
  }
}

TEST_F(DeviceExecutor, RecordsWhatEachBlockDid) {
  RunnerSetup setup = device(2);
  setup.options.trace_events = 4096;
  const auto runner = make_runner(gpt2_or_llama(false), setup);
  run_greedy(*runner, random_tokens(5, 6), 24, 1);
  const Timeline timeline = runner->timeline();
  EXPECT_EQ(timeline.blocks.size(), static_cast<std::size_t>(2 * runner->device()->processors()));
  for (const auto& block : timeline.blocks) {
    ASSERT_GE(block.size(), 3u);
    for (std::size_t i = 0; i + 1 < block.size(); ++i) {
      EXPECT_EQ(static_cast<int>(block[i].kind), static_cast<int>(i % 3)) << "wait, run, publish in turn";
      EXPECT_LE(block[i].clock, block[i + 1].clock);
    }
  }
  const std::vector<PhaseTimes> times = phase_times(timeline);
  EXPECT_GT(times.size(), 10u);
  for (const PhaseTimes& t : times) {
    EXPECT_FALSE(timeline.phases[0][t.phase].empty());
    EXPECT_GE(t.instances, 1);
  }
}

TEST_F(DeviceExecutor, AbortEndsWithItsReason) {
  const auto runner = make_runner(gpt2_or_llama(false), device(1));
  StepDescriptor step;
  step.tokens = {1};
  step.sequences = {{0, 0, 1, 0}};
  runner->post(step);
  runner->abort("the test says so");
  try {
    for (int i = 0; i < 100; ++i) runner->poll(std::chrono::milliseconds(100));
    FAIL() << "poll() did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("the test says so"), std::string::npos);
  }
}

}  // namespace
}  // namespace ark::test
