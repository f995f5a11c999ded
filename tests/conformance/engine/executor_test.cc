// What every executor must do, whatever it runs on: equal bytes for equal steps.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

struct Backend {
  std::string name;
  RaggedOptions options;
  Link link = Link::kDirect;
};

RaggedOptions options(bool lockstep, int threads) {
  RaggedOptions o;
  o.lockstep = lockstep;
  o.threads = threads;
  o.step_deadline = std::chrono::seconds(20);
  return o;
}

std::vector<Backend> backends() {
  std::vector<Backend> all = {{"lockstep", options(true, 1)},
                              {"lockstep of 3 processors", options(true, 12)},
                              {"loop", options(false, 1)},
                              {"loop of 2 processors", options(false, 8)},
                              {"loop with barriers", options(false, 8)},
                              {"loop near the counters' wrap", options(false, 8)},
                              {"loop with leases of 1", options(false, 2)},
                              {"loop without SIMD", options(false, 2)},
                              {"loop with AVX2", options(false, 2)},
                              {"loop over the pump", options(false, 2), Link::kPosted}};
  all[4].options.barrier = true;
  all[5].options.counter_base = 0xffffff00;
  all[6].options.lease = 1;
  all[7].options.isa = Isa::kScalar;
  if (best_isa() != Isa::kScalar) all[8].options.isa = Isa::kAvx2;
  return all;
}

class ExecutorSuite : public ::testing::TestWithParam<int> {};

TEST_P(ExecutorSuite, GivesTheOraclesBytesAtEveryDegree) {
  const Backend backend = backends()[GetParam()];
  SCOPED_TRACE(backend.name);
  for (const bool gpt2 : {false, true}) {
    const DecoderModel model = gpt2 ? gpt2_tokens() : llama_tokens();
    RunnerSetup oracle;
    oracle.options = options(true, 1);
    const auto prompt = random_tokens(13, 1);
    const auto expected = run_greedy(*make_runner(model, oracle), prompt, 64, 8);
    ASSERT_EQ(expected.size(), 9u);
    for (const int ranks : {1, 2, 4}) {
      if (gpt2 && ranks == 2) continue;
      RunnerSetup setup;
      setup.ranks = ranks;
      setup.options = backend.options;
      setup.link = backend.link;
      const auto runner = make_runner(model, setup);
      EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt, 64, 8)))
          << "ranks " << ranks << " gpt2 " << gpt2;
    }
  }
}

// 4- and 8-bit panels stand for the numbers of their codes: the same bytes as with those numbers as f32.
TEST_P(ExecutorSuite, QuantizedWeightsGiveTheBytesOfTheirNumbers) {
  const Backend backend = backends()[GetParam()];
  SCOPED_TRACE(backend.name);
  const auto prompt = random_tokens(13, 2);
  const TokenGraphOptions stored[] = {{.bits = 4},
                                      {.bits = 8},
                                      {.bits = 4, .terms = BlockTerms::kOffsets16},
                                      {.bits = 8, .terms = BlockTerms::kOffsets16},
                                      {.bits = 4, .terms = BlockTerms::kScales16},
                                      {.bits = 8, .terms = BlockTerms::kScales16},
                                      {.bits = 4, .floating = DType::kNF4},
                                      {.bits = 8, .floating = DType::kF8E4M3},
                                      {.weight = DType::kF8E4M3}};
  for (const TokenGraphOptions& each : stored) {
    for (const bool gpt2 : {false, true}) {
      const auto which = &each - stored;
      if (is_sanitized() && (which % 2 != 0 || gpt2 != (which / 2) % 2)) continue;
      TokenGraphOptions o = each;
      o.tied = gpt2;
      const DecoderModel model = gpt2 ? gpt2_tokens(o) : llama_tokens(o);
      o.is_decoded = true;
      RunnerSetup oracle;
      oracle.options = options(true, 1);
      oracle.weights = WeightPolicy::kF32;
      const DecoderModel decoded = gpt2 ? gpt2_tokens(o) : llama_tokens(o);
      const auto expected = run_greedy(*make_runner(decoded, oracle), prompt, 64, 4);
      for (const int32_t ranks : degrees({1, 2, 4})) {
        RunnerSetup setup;
        setup.ranks = ranks;
        setup.options = backend.options;
        setup.link = backend.link;
        const auto runner = make_runner(model, setup);
        EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt, 64, 4)))
            << o.bits << " bits, " << name_of(o.floating) << ", ranks " << ranks << " gpt2 " << gpt2;
        // The same codes, or others that stand for the same numbers, found in these.
        EXPECT_TRUE(same_bits(expected, run_greedy(*make_runner(decoded, setup), prompt, 64, 4)))
            << o.bits << " bits, found, ranks " << ranks << " gpt2 " << gpt2;
      }
    }
  }
}

// What tells matrices apart is more than where their codes lie.
TEST(Executor, QuantizedWeightsMayShareCodesAndScales) {
  TokenGraphOptions o;
  o.bits = 4, o.is_shared = true;
  const auto prompt = random_tokens(9, 3);
  RunnerSetup setup;
  setup.options = options(true, 1);
  const auto got = run_greedy(*make_runner(llama_tokens(o), setup), prompt, 64, 2);
  o.is_decoded = true;
  setup.weights = WeightPolicy::kF32;
  EXPECT_TRUE(same_bits(run_greedy(*make_runner(llama_tokens(o), setup), prompt, 64, 2), got));
}

// Those too that a file holds as f32; but with it --weights f32 does.
TEST(Executor, NumbersOfCodesAreKeptAsCodes) {
  for (const BlockTerms terms : {BlockTerms::kZeros, BlockTerms::kOffsets16, BlockTerms::kScales16}) {
    const DecoderModel model = llama_tokens({.bits = 4, .terms = terms, .is_decoded = true});
    for (const WeightPolicy policy : {WeightPolicy::kExact, WeightPolicy::kF32}) {
      const Compiled compiled =
          compile_decoder(model, {.max_tokens = 16, .max_rows = 16, .max_items = 16, .storage = {policy, 1}});
      int products = 0;
      for (const WeightUse& use : compiled.programs[0].weights)
        products +=
            use.layout == Layout::kPanels && (use.stored == DType::kF32) == (policy == WeightPolicy::kF32);
      EXPECT_GE(products, 15) << "7 a layer and the head";
      for (const WeightUse& use : compiled.programs[0].weights)
        EXPECT_EQ(use.terms, use.stored == DType::kU4 ? terms : BlockTerms::kZeros);
      EXPECT_EQ(compiled.storage.empty(), policy == WeightPolicy::kF32) << compiled.storage;
    }
  }
}

// Nothing of a quantized model is kept as f32 but biases, norms and tables of angles.
TEST(Executor, QuantizedWeightsStayQuantized) {
  const std::pair<TokenGraphOptions, DType> cases[] = {
      {{.bits = 4}, DType::kU4},
      {{.bits = 8}, DType::kU8},
      {{.bits = 4, .floating = DType::kNF4}, DType::kNF4},
      {{.bits = 4, .floating = DType::kFP4}, DType::kFP4},
      {{.bits = 8, .floating = DType::kF8E4M3}, DType::kF8E4M3},
      {{.weight = DType::kF8E4M3}, DType::kF8E4M3}};
  for (const auto& [o, stored] : cases) {
    for (const int ranks : {1, 2}) {
      CompileOptions compile;
      compile.ranks = ranks;
      compile.max_tokens = compile.max_rows = compile.max_items = 16;
      const Compiled compiled = compile_decoder(llama_tokens(o), compile);
      for (const Program& program : compiled.programs) {
        int products = 0;
        for (const WeightUse& use : program.weights) {
          if (use.layout != Layout::kPanels) continue;
          ++products;
          EXPECT_EQ(use.stored, stored);
        }
        EXPECT_GE(products, 15) << "7 a layer and the head";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExecutorSuite, ::testing::Range(0, 10));

TEST(Executor, PrefillInChunksEqualsOneChunk) {
  const DecoderModel model = llama_tokens();
  const auto runner = make_runner(model, {});
  const auto prompt = random_tokens(29, 2);
  const auto expected = run_greedy(*runner, prompt, 64, 3);
  for (const int32_t chunk : {1, 3, 7, 16})
    EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt, chunk, 3))) << chunk;
}

TEST(Executor, UnevenRanksDecode) {
  const DecoderModel model = llama_tokens();
  RunnerSetup three;
  three.ranks = 3;
  three.options.threads = 3;
  const auto prompt = random_tokens(9, 3);
  const auto a = run_greedy(*make_runner(model, {}), prompt, 64, 4);
  const auto b = run_greedy(*make_runner(model, three), prompt, 64, 4);
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[i].size(); ++j) EXPECT_TRUE(std::fabs(a[i][j] - b[i][j]) <= 1e-4f);
  }
}

// Greedy tokens of each prompt, run alone.
std::vector<std::vector<int32_t>> alone(StepRunner& runner, const std::vector<std::vector<int32_t>>& prompts,
                                        int32_t extra) {
  std::vector<std::vector<int32_t>> all;
  for (const auto& prompt : prompts) {
    std::vector<int32_t> tokens;
    for (const auto& row : run_greedy(runner, prompt, 64, extra)) {
      tokens.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    }
    all.push_back(std::move(tokens));
  }
  return all;
}

// Random batching, chunking, preemption by recompute and feedback of tokens that the host has not seen yet.
TEST(Executor, RandomSchedulesChangeNothing) {
  const DecoderModel model = llama_tokens();
  RunnerSetup setup;
  setup.ranks = 2;
  setup.options.threads = 2;
  setup.options.counter_base = 0xfffffff0;
  setup.pages = 4096;
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 4; ++i) prompts.push_back(random_tokens(3 + 5 * i, 10 + static_cast<uint32_t>(i)));
  constexpr int32_t kExtra = 7;
  const auto runner = make_runner(model, setup);
  const auto expected = alone(*runner, prompts, kExtra);
  std::mt19937 random(7);
  for (int schedule = 0; schedule < rounds(60); ++schedule) {
    std::vector<Sequence> live;
    std::vector<std::vector<int32_t>> got(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i)
      live.push_back({static_cast<int32_t>((i + random()) % 2 * 4 + i), prompts[i]});
    for (std::size_t i = 0; i < live.size(); ++i)
      live[i].slot = static_cast<int32_t>((i * 3 + static_cast<std::size_t>(schedule)) % 8);
    int32_t next_page = static_cast<int32_t>(random() % 50);
    const auto finished = [&] {
      return std::all_of(got.begin(), got.end(), [](const auto& g) { return g.size() > kExtra; });
    };
    while (!finished()) {
      StepDescriptor step;
      std::vector<std::size_t> rows;
      for (std::size_t i = 0; i < live.size(); ++i) {
        Sequence& s = live[i];
        if (got[i].size() > kExtra || random() % 4 == 0) continue;
        if (random() % 16 == 0 && s.cached > 0) {  // preempted: all is computed again, on other pages
          s.cached = 0;
          s.pages.clear();
        }
        const auto left = static_cast<int32_t>(s.tokens.size()) - s.cached;
        const int32_t count = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(left));
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
      ASSERT_EQ(got[i], expected[i]) << "schedule " << schedule << " sequence " << i;
  }
}

TEST(Executor, TwoStepsInFlightFeedTokensBackOnTheDevice) {
  const DecoderModel model = gpt2_tokens();
  RunnerSetup setup;
  setup.ranks = 2;
  setup.options.threads = 2;
  const auto runner = make_runner(model, setup);
  const auto prompt = random_tokens(6, 5);
  const auto expected = alone(*runner, {prompt}, 12)[0];
  Sequence s{.slot = 3, .tokens = prompt};
  int32_t next_page = 64;
  StepDescriptor step;
  add_chunk(step, s, 6, 4, next_page, true, kWantToken);
  runner->post(step);
  std::vector<int32_t> got;
  for (int i = 0; i < 12; ++i) {
    StepDescriptor decode;
    s.tokens.push_back(kFeedbackToken);
    add_chunk(decode, s, 1, 4, next_page, true, kWantToken);
    runner->post(decode);  // before the token that it feeds has been seen
    got.push_back(wait_for(*runner).rows[0].token);
  }
  got.push_back(wait_for(*runner).rows[0].token);
  EXPECT_EQ(got, expected);
}

TEST(Executor, ParksWhenIdleAndGoesOn) {
  const auto runner = make_runner(llama_tokens(), {});
  const auto prompt = random_tokens(5, 6);
  const auto expected = run_greedy(*runner, prompt, 64, 2);
  for (int i = 0; i < 200 && !runner->is_parked(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(runner->is_parked());
  EXPECT_TRUE(same_bits(expected, run_greedy(*runner, prompt, 64, 2)));
}

TEST(Executor, CopiesPagesBeforeTheStep) {
  const auto runner = make_runner(llama_tokens(), {});
  const auto prompt = random_tokens(8, 8);
  const auto expected = run_greedy(*runner, prompt, 64, 0);
  // The first page is computed by slot 1, copied, and continued by slot 2.
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

TEST(Executor, AbortEndsWithItsReason) {
  const auto runner = make_runner(llama_tokens(), {});
  runner->abort("the test says so");
  try {
    runner->poll(std::chrono::seconds(5));
    FAIL() << "poll() did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("the test says so"), std::string::npos);
  }
}

TEST(Executor, RefusesStepsThatBreakALimit) {
  const auto runner = make_runner(llama_tokens(), {});
  StepDescriptor step;
  step.tokens = {500};
  step.sequences = {{0, 0, 1, 0}};
  EXPECT_THROW(runner->post(step), Error);
  step.tokens = {5};
  step.sequences[0].slot = 99;
  EXPECT_THROW(runner->post(step), Error);
  step.sequences[0] = {0, 0, 1, 64};
  EXPECT_THROW(runner->post(step), Error);
}

}  // namespace
}  // namespace ark::test
