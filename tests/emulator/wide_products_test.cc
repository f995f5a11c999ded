// Wide tiles of matrix products: exact ones (Numerics::kExact) against steps of few rows, which have none; others
// (Numerics::kFast) against the CPU's lockstep executor, and what they must not change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "tests/conformance/cuda/test_gpu.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/product_tiles.h"
#include "tests/engine/near_rows.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

// As tests/emulator/decoders_test.cc derives it: 20 sums in a row, each of x rounded to the weight's type, which is
// most of it; beside that order counts, 2 * 512^0.5 effective terms * 2^-24.
float bound_of(DType weight) { return 20 * (weight == DType::kF16 ? 0x1p-12f : 0x1p-9f); }
// Against who rounds x likewise, where sums differ in their last bits alone: order counts, 10 sums in a row of a layer.
constexpr float kBoundOfEqualRounding = 3e-5f;

RunnerSetup setup_for(int32_t tokens, int ranks = 1) {
  RunnerSetup setup;
  setup.ranks = ranks;
  setup.max_tokens = tokens, setup.max_length = tokens + 8, setup.page_size = 16;
  setup.options.step_deadline = std::chrono::seconds(120);
  return setup;
}
RunnerSetup oracle_for(int32_t tokens) {
  RunnerSetup setup = setup_for(tokens);
  setup.options.lockstep = true, setup.options.threads = 1;
  return setup;
}
RunnerSetup device_for(int32_t tokens, int ranks, int processors, int groups,
                       cuda::Numerics numerics = cuda::Numerics::kFast) {
  RunnerSetup setup = setup_for(tokens, ranks);
  setup.options.gpu = test_gpu({});
  setup.options.device.processors = processors;
  setup.options.device.groups = groups;
  setup.options.device.numerics = numerics;
  return setup;
}

// The largest of a row's, in parts of the largest logit, or of 1.
float difference(const std::vector<float>& expected, const std::vector<float>& got) {
  float scale = 1, most = 0;
  for (const float v : expected) scale = std::max(scale, std::fabs(v));
  for (std::size_t j = 0; j < expected.size(); ++j) {
    const float off = std::fabs(expected[j] - got[j]) / scale;
    if (!(off <= most)) most = off;  // NaN stays
  }
  return most;
}

struct Wide {
  int tiles = 0, shared = 0;  // products of a step that have wide tiles; of which some share outputs
  int32_t pieces = 0;         // of a wide tile, at most
};
Wide wide_products(const DecoderModel& model, const RunnerSetup& setup, int32_t rows) {
  Wide all;
  for (const cuda::StreamTiles& tiles : product_tiles(model, setup, rows)) {
    all.tiles += tiles.wide;
    all.shared += tiles.wide && tiles.groups > 1;
    if (tiles.wide) all.pieces = std::max(all.pieces, tiles.pieces);
  }
  return all;
}

TokenGraphOptions shape_of(DType weight) {
  TokenGraphOptions o{
      .layers = 2, .hidden = 128, .heads = 4, .kv_heads = 2, .head_dim = 32, .intermediate = 448};
  o.max_positions = 512, o.vocabulary = 300, o.weight = weight;
  return o;
}

DecoderModel model_of(bool is_gpt2, TokenGraphOptions o) {
  if (!is_gpt2) return llama_tokens(o);
  o.head_dim = 32, o.kv_heads = o.heads;
  return gpt2_tokens(o);
}

struct WideCase {
  const char* name;
  bool is_gpt2;
  DType weight;
  int32_t tokens;  // of the prompt
  int ranks, processors, groups;
  int64_t head_dim = 32;
  DType kv = DType::kF32;
  int32_t bits = 0;  // of codes; 0: numbers of `weight`
};

// Of whose properties each is shown by another case, too.
bool is_for_full_runs(std::string_view name) {
  constexpr std::string_view kLikeOthers[] = {"LlamaOnTwoRanksByGroups", "TreesOfSixLevelsOnTwoRanks",
                                              "TreesOfSevenLevelsOnSm80", "EightBitsOnTwoRanks"};
  return std::ranges::find(kLikeOthers, name) != std::end(kLikeOthers) && !std::getenv("ARK_FULL");
}
constexpr const char* kWhyNotNow = "other cases show what it shows; ARK_FULL=1 runs it";

class WideProducts : public ::testing::TestWithParam<WideCase> {};

TEST_P(WideProducts, AreNearTheCpu) {
  const WideCase& c = GetParam();
  if (is_for_full_runs(c.name)) GTEST_SKIP() << kWhyNotNow;
  TokenGraphOptions o = shape_of(c.weight);
  o.head_dim = c.head_dim, o.bits = c.bits, o.block = 32;
  const DecoderModel model = model_of(c.is_gpt2, o);
  RunnerSetup cpu = oracle_for(c.tokens + 8), gpu = device_for(c.tokens + 8, c.ranks, c.processors, c.groups);
  for (RunnerSetup* s : {&cpu, &gpu}) s->kv_dtype = c.kv;
  const Wide wide = wide_products(model, gpu, c.tokens);
  EXPECT_GT(wide.tiles, 0) << "this would show nothing";
  EXPECT_EQ(wide.shared > 0, c.groups != 1) << "tiles that share outputs";
  const auto prompt = random_tokens(c.tokens, 7, o.vocabulary);
  expect_near_until_a_tie(run_greedy(*make_runner(model, cpu), prompt, c.tokens, 2),
                          run_greedy(*make_runner(model, gpu), prompt, c.tokens, 2), bound_of(c.weight));
  if (c.weight != DType::kBF16 || c.bits != 0) return;
  // CPUs that multiply bf16 round x as wide tiles do, which all products have where all rows are wanted. One layer:
  // where x lies near to the middle of two numbers each may take another, which further layers would make more of.
  o.layers = 1;
  const DecoderModel short_model = model_of(c.is_gpt2, o);
  cpu.activations = Activations::kBF16;
  for (RunnerSetup* s : {&cpu, &gpu}) s->max_rows = c.tokens;
  const Rows expected = all_rows(*make_runner(short_model, cpu), prompt, c.tokens),
             got = all_rows(*make_runner(short_model, gpu), prompt, c.tokens);
  ASSERT_EQ(expected.size(), prompt.size());
  int near = 0;
  for (std::size_t r = 0; r < expected.size(); ++r) {
    const float off = difference(expected[r], got[r]);
    EXPECT_TRUE(off <= 0x1p-8f) << "row " << r << ": more than x rounded the other way here and there";
    near += off <= kBoundOfEqualRounding;
  }
  EXPECT_GE(near, c.tokens * 9 / 10) << "rows whose x is rounded alike";
}
INSTANTIATE_TEST_SUITE_P(
    All, WideProducts,
    ::testing::Values(WideCase{"Gpt2InF16", true, DType::kF16, 200, 1, 3, 1},
                      WideCase{"Gpt2InBf16ByGroups", true, DType::kBF16, 150, 1, 5, 2},
                      WideCase{"LlamaInBf16", false, DType::kBF16, 200, 1, 3, 1},
                      WideCase{"LlamaInF16ByGroups", false, DType::kF16, 257, 1, 3, 4},
                      WideCase{"LlamaOnTwoRanks", false, DType::kBF16, 200, 2, 2, 1},
                      WideCase{"LlamaOnTwoRanksByGroups", false, DType::kBF16, 200, 2, 3, 2},
                      WideCase{"RowsOfOneEightAWarp", false, DType::kBF16, 21, 1, 1, 1},
                      WideCase{"RowsOfOneEightAWarpByGroups", false, DType::kF16, 32, 1, 3, 4},
                      WideCase{"RowsOfTwoEightsAWarp", false, DType::kF16, 47, 1, 1, 1},
                      WideCase{"RowsOfThreeEightsAWarpOnTwoRanks", false, DType::kBF16, 90, 2, 2, 2},
                      WideCase{"Gpt2sLastRowAlone", true, DType::kF16, 129, 1, 2, 1},
                      WideCase{"HeadsThatLieInTwoPanels", false, DType::kF16, 140, 1, 3, 1, 24},
                      WideCase{"CodesOfFourBits", false, DType::kBF16, 130, 1, 3, 1, 32, DType::kF32, 4},
                      WideCase{"CodesOfEightBitsByGroups", true, DType::kBF16, 75, 1, 3, 2, 32, DType::kF32,
                               8},
                      WideCase{"CodesOnTwoRanks", false, DType::kBF16, 47, 2, 2, 1, 32, DType::kF32, 4},
                      WideCase{"KeysWithScales", false, DType::kF16, 140, 1, 3, 1, 32, DType::kI8}),
    [](const auto& info) { return std::string(info.param.name); });

struct ExactCase {
  const char* name;
  bool is_gpt2;
  DType weight;
  int32_t tokens;  // of the prompt
  int ranks, processors, groups;
  int32_t pieces = 8;  // of a wide tile, at most
  int64_t intermediate = 448;
  int64_t head_dim = 32;
  DType kv = DType::kF32;
  int arch = 900;           // of 800: less scratch for sums that wait, and for x
  int64_t shares_from = 0;  // DeviceOptions
  int32_t bits = 0;         // of codes; 0: numbers of `weight`
  int64_t block = 32;
  BlockTerms terms = BlockTerms::kZeros;
};
class ExactWideProducts : public ::testing::TestWithParam<ExactCase> {};

TEST_P(ExactWideProducts, HaveTheBitsOfStepsOfFewRows) {
  const ExactCase& c = GetParam();
  if (is_for_full_runs(c.name)) GTEST_SKIP() << kWhyNotNow;
  TokenGraphOptions o = shape_of(c.weight);
  o.head_dim = c.head_dim, o.intermediate = c.intermediate;
  o.bits = c.bits, o.block = c.block, o.terms = c.terms;
  const DecoderModel model = model_of(c.is_gpt2, o);
  RunnerSetup setup = device_for(c.tokens + 8, c.ranks, c.processors, c.groups, cuda::Numerics::kExact);
  setup.kv_dtype = c.kv, setup.max_rows = c.tokens;
  setup.options.device.shares_from = c.shares_from;
  if (c.arch != 900)
    setup.options.gpu = std::make_shared<emulator::EmulatedGpu>(
        std::make_shared<emulator::World>(), emulator::EmulatedGpuOptions{.processors = 4, .arch = c.arch});
  const Wide wide = wide_products(model, setup, c.tokens);
  EXPECT_GT(wide.tiles, 0) << "this would show nothing";
  EXPECT_EQ(wide.shared > 0, c.groups != 1) << "tiles that share outputs";
  EXPECT_EQ(wide.pieces, c.pieces) << "what the tree has of levels";
  EXPECT_EQ(wide_products(model, setup, cuda::kFewRows).tiles, 0);
  const auto prompt = random_tokens(c.tokens, 7, o.vocabulary);
  const Rows few = all_rows(*make_runner(model, setup), prompt, cuda::kFewRows),
             at_once = all_rows(*make_runner(model, setup), prompt, c.tokens);
  ASSERT_EQ(few.size(), prompt.size());
  EXPECT_TRUE(same_bits(few, at_once));
}
ExactCase of_codes(const char* name, int32_t bits, int64_t block, BlockTerms terms, ExactCase c) {
  c.name = name, c.bits = bits, c.block = block, c.terms = terms;
  return c;
}
INSTANTIATE_TEST_SUITE_P(
    All, ExactWideProducts,
    ::testing::Values(
        ExactCase{"Gpt2InF16", true, DType::kF16, 100, 1, 3, 1},
        ExactCase{"Gpt2InBf16ByGroups", true, DType::kBF16, 70, 1, 5, 2, 4},
        ExactCase{"LlamaInBf16", false, DType::kBF16, 130, 1, 3, 1},
        ExactCase{"LlamaInF16ByGroups", false, DType::kF16, 75, 1, 3, 4, 2},
        ExactCase{"LlamaOnTwoRanks", false, DType::kBF16, 66, 2, 2, 1, 4},
        ExactCase{"TreesOfSixLevelsOnTwoRanks", false, DType::kBF16, 66, 2, 2, 1, 32, 4096},
        ExactCase{"GroupsOfEight", false, DType::kF16, 40, 1, 3, 8, 1},
        ExactCase{"LlamaOnTwoRanksByGroups", false, DType::kBF16, 100, 2, 3, 2, 2},
        ExactCase{"SharesOfTwoRanks", false, DType::kBF16, 66, 2, 2, 1, 4, 448, 32, DType::kF32, 900, 1},
        ExactCase{"SharesOfTwoRanksByGroups", false, DType::kBF16, 100, 2, 3, 2, 2, 448, 32, DType::kF32, 900,
                  1},
        ExactCase{"RowsOfOneEightAWarp", false, DType::kBF16, 30, 1, 1, 1},
        ExactCase{"RowsOfOneEightAWarpByGroups", false, DType::kF16, 32, 1, 3, 4, 2},
        ExactCase{"RowsOfTwoEightsAWarp", false, DType::kF16, 47, 1, 1, 1},
        ExactCase{"TreesOfFiveLevels", false, DType::kF16, 70, 1, 2, 1, 32, 2048},
        // More pieces than registers and scratch hold levels of: sums wait in memory.
        ExactCase{"TreesOfSevenLevels", true, DType::kBF16, 70, 1, 1, 1, 128, 4160},
        ExactCase{"TreesOfSevenLevelsOnSm80", true, DType::kBF16, 70, 1, 1, 1, 128, 4160, 32, DType::kF32,
                  800},
        ExactCase{"TreesOfSevenLevelsOfOneEight", true, DType::kBF16, 30, 1, 1, 1, 128, 4160},
        ExactCase{"TreesOfSevenLevelsOfOneEightOnSm80", true, DType::kBF16, 20, 1, 1, 1, 128, 4160, 32,
                  DType::kF32, 800},
        ExactCase{"LlamaOnSm80ByGroups", false, DType::kF16, 75, 1, 3, 4, 2, 448, 32, DType::kF32, 800},
        ExactCase{"TreesOfFourLevelsByGroups", true, DType::kBF16, 40, 1, 3, 2, 16, 2048},
        ExactCase{"HeadsThatLieInTwoPanels", false, DType::kF16, 70, 1, 1, 1, 8, 448, 24},
        ExactCase{"KeysWithScales", false, DType::kF16, 70, 1, 1, 1, 8, 448, 32, DType::kI8}),
    [](const auto& info) { return std::string(info.param.name); });
// Pieces of 128 rows are two slices of x, those of 64 and of 96 one and two; blocks of 128 have products of 64.
INSTANTIATE_TEST_SUITE_P(
    Codes, ExactWideProducts,
    ::testing::Values(
        of_codes("FourBits", 4, 32, BlockTerms::kZeros, {"", false, DType::kF32, 100, 1, 3, 1, 8, 1024}),
        of_codes("FourBitsByGroups", 4, 32, BlockTerms::kOffsets16,
                 {"", false, DType::kF32, 70, 1, 3, 2, 4, 1024}),
        of_codes("FourBitsInBlocksOf128", 4, 128, BlockTerms::kZeros,
                 {"", true, DType::kF32, 130, 1, 3, 1, 8, 512}),
        of_codes("FourBitsInBlocksOf16OfOneEight", 4, 16, BlockTerms::kScales16,
                 {"", true, DType::kF32, 30, 1, 1, 1, 16, 2048}),
        of_codes("FourBitsOnSm80", 4, 64, BlockTerms::kOffsets16,
                 {"", true, DType::kF32, 70, 1, 1, 1, 32, 4096, 32, DType::kF32, 800}),
        // A slice ends inside a block, and a piece before its second slice.
        of_codes("FourBitsInBlocksOf48", 4, 48, BlockTerms::kZeros,
                 {"", false, DType::kF32, 70, 1, 3, 1, 8, 448}),
        of_codes("FourBitsOnTwoRanks", 4, 32, BlockTerms::kScales16,
                 {"", false, DType::kF32, 66, 2, 2, 1, 8, 2048}),
        of_codes("EightBits", 8, 32, BlockTerms::kScales16, {"", false, DType::kF32, 90, 1, 3, 1, 8, 448}),
        of_codes("EightBitsOnTwoRanks", 8, 32, BlockTerms::kZeros,
                 {"", false, DType::kF32, 66, 2, 2, 1, 4, 448}),
        of_codes("EightBitsInTreesOfSixLevels", 8, 32, BlockTerms::kOffsets16,
                 {"", true, DType::kF32, 40, 1, 1, 1, 64, 4160})),
    [](const auto& info) { return std::string(info.param.name); });

// A tile's sums are one after the other: who takes it changes nothing. Where more are at work other products may be
// narrow, which adds up otherwise.
TEST(WideProductsOrder, BitsDependOnNoNumberOfProcessors) {
  const DecoderModel model = llama_tokens(shape_of(DType::kBF16));
  const auto prompt = random_tokens(200, 9, 300);
  const auto rows_of = [&](int processors) {
    const RunnerSetup setup = device_for(208, 1, processors, 1);
    EXPECT_EQ(wide_products(model, setup, 200).tiles, 9) << "all but those of the rows wanted";
    return run_greedy(*make_runner(model, setup), prompt, 200, 2);
  };
  EXPECT_TRUE(same_bits(rows_of(1), rows_of(2)));
}

// Steps have rings of weights by their rows, as they leave scratch to these or take stages of them: one behind the
// other, each in turns of even and of odd number, bits are what they are of steps of one size, or near them.
TEST(WideProductsOrder, RingsOfFewAndManyRowsFollowEachOther) {
  constexpr int32_t kTokens = 200;
  TokenGraphOptions o = shape_of(DType::kBF16);
  o.intermediate = 1024;  // so many pieces that nine rows of them do not fit into what is left of the scratch
  const DecoderModel numbers = llama_tokens(o);
  // A loop of long pieces, which leave scratch to the ring in steps of few rows alone.
  o.bits = 4, o.block = 32;
  const DecoderModel codes = llama_tokens(o);
  const auto prompt = random_tokens(kTokens, 9, 300);
  struct Case {
    const DecoderModel& model;
    cuda::Numerics numerics;
  };
  for (const Case& c : {Case{numbers, cuda::Numerics::kExact},
                        {numbers, cuda::Numerics::kFast},
                        {codes, cuda::Numerics::kExact}}) {
    const DecoderModel& model = c.model;
    const cuda::Numerics numerics = c.numerics;
    const RunnerSetup setup = device_for(kTokens + 8, 1, 3, 0, numerics);
    EXPECT_GT(wide_products(model, setup, 40).tiles, 0);
    EXPECT_EQ(wide_products(model, setup, 12).tiles > 0, numerics == cuda::Numerics::kFast);
    const auto last_of = [&](const std::vector<int32_t>& chunks) {
      return Rows{run_chunks(*make_runner(model, setup), {.tokens = prompt}, chunks).back()};
    };
    const Rows mixed = last_of({2, 40, 12, 1, 33, 8, 70, 9, 17, 8}), alone = last_of({kTokens});
    if (numerics == cuda::Numerics::kExact) {
      EXPECT_TRUE(same_bits(mixed, alone));
    }
    expect_near_until_a_tie(alone, mixed, bound_of(DType::kBF16));
  }
}

// Steps of few rows are what they are in exact numerics.
TEST(WideProductsOrder, StepsOfFewRowsAreExact) {
  const DecoderModel model = llama_tokens(shape_of(DType::kF16));
  const auto prompt = random_tokens(20, 9, 300);
  const RunnerSetup fast = device_for(208, 1, 3, 0), exact = device_for(208, 1, 3, 0, cuda::Numerics::kExact);
  EXPECT_EQ(wide_products(model, fast, cuda::kFewRows).tiles, 0);
  EXPECT_TRUE(same_bits(run_greedy(*make_runner(model, fast), prompt, cuda::kFewRows, 2),
                        run_greedy(*make_runner(model, exact), prompt, cuda::kFewRows, 2)));
}

}  // namespace
}  // namespace ark::test
