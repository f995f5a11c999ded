// Exported decoders and shapes that stress one body each, on an emulated GPU against the CPU's lockstep
// executor.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/compile.h"
#include "engine/cuda/block_layout.h"
#include "engine/cuda/dealing.h"
#include "engine/cuda/variants.h"
#include "tests/conformance/cuda/test_gpu.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/engine/driving.h"
#include "tests/engine/models.h"
#include "tests/engine/near_rows.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

// Both sides add up the same f32 products in different orders: each sum of n <= 512 terms differs by at most
// 2 n 2^-24 of the sum of their sizes (x split for tensor cores: 2^-21 of it more); layers carry errors on
// with gains of about one, and there are at most 20 sums in a row: 20 * (2 * 64 effective terms * 2^-24 +
// 2^-21), rounded up.
constexpr float kDecoderBound = 2.5e-4f;

void expect_near_until_a_tie(const Rows& expected, const Rows& got) {
  test::expect_near_until_a_tie(expected, got, kDecoderBound);
}

RunnerSetup oracle() {
  RunnerSetup setup;
  setup.options.lockstep = true;
  setup.options.threads = 1;
  return setup;
}

RunnerSetup device(int ranks, int processors = 2, int groups = 0) {
  RunnerSetup setup;
  setup.ranks = ranks;
  setup.max_tokens = 24;
  setup.page_size = 8;  // a warp's keys lie in few pages
  setup.options.gpu = test_gpu({});
  setup.options.device.processors = processors;
  setup.options.device.groups = groups;
  setup.options.step_deadline = std::chrono::seconds(60);
  return setup;
}

class Fixture : public ::testing::TestWithParam<std::string> {};

TEST_P(Fixture, GivesTheCpusTokensOnOneAndTwoRanks) {
  const std::filesystem::path file = model_file(fixtures() / GetParam());
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no fixture " << GetParam();
  std::string why;
  const auto model = read_decoder(file, why);
  ASSERT_TRUE(model) << why;
  const auto prompt = random_tokens(19, 7, model->vocabulary);
  const Rows expected = run_greedy(*make_runner(*model, oracle()), prompt, 64, 3);
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE("ranks " + std::to_string(ranks));
    expect_near_until_a_tie(expected, run_greedy(*make_runner(*model, device(ranks)), prompt, 7, 3));
  }
}
INSTANTIATE_TEST_SUITE_P(Exported, Fixture,
                         ::testing::Values("tiny-random-gpt2", "gpt2-fp16-io32", "llama-optimum",
                                           "llama-fp16", "llama-ort-fused", "mistral-sliding"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Rows that say themselves that they are there lie where those of earlier steps have lain: steps of few rows, fewer and
// more than the one before, with others between them, give the bits of one step.
TEST(FewRows, OfAnyNumberInTurnsGiveTheSameBits) {
  for (const DType weight : {DType::kF32, DType::kF16}) {
    TokenGraphOptions o;
    o.kv_heads = 2, o.head_dim = 16, o.hidden = 64, o.intermediate = 192, o.weight = weight;
    const DecoderModel model = llama_tokens(o);
    const std::vector<int32_t> chunks = {8, 1, 3, 12, 1, 7, 8, 2, 1, 1, 5};
    const int32_t all = std::accumulate(chunks.begin(), chunks.end(), 0);
    const auto prompt = random_tokens(all, 7, o.vocabulary);
    for (const int groups : {0, 2}) {
      RunnerSetup setup = device(1, 3, groups);
      setup.max_tokens = all;
      const Rows alone = {run_chunks(*make_runner(model, setup), {.tokens = prompt}, {all}).back()};
      const Rows mixed = {run_chunks(*make_runner(model, setup), {.tokens = prompt}, chunks).back()};
      EXPECT_TRUE(same_bits(alone, mixed)) << name_of(weight) << ", groups " << groups;
    }
  }
}

// A product whose x is its residual, too: who adds up its sums reads the one, and it waits for the other all the same.
TEST(FewRows, OfProductsThatAddTheirOwnXAreWaitedFor) {
  TokenGraphOptions o;
  o.layers = 2, o.hidden = 64, o.head_dim = 16, o.adds_own = true;
  const DecoderModel model = gpt2_tokens(o);
  const auto prompt = random_tokens(11, 7, o.vocabulary);
  const Rows expected = run_greedy(*make_runner(model, oracle()), prompt, 11, 2);
  for (const auto schedule :
       {emulator::Schedule::kFixed, emulator::Schedule::kRandom, emulator::Schedule::kPct}) {
    const auto world = std::make_shared<emulator::World>(emulator::Options{
        .schedule = schedule, .landing = emulator::Landing::kRandom, .seed = 3, .detector = true});
    RunnerSetup setup = device(1, 3, 2);
    setup.options.gpu =
        std::make_shared<emulator::EmulatedGpu>(world, emulator::EmulatedGpuOptions{.processors = 3});
    expect_near_until_a_tie(expected, run_greedy(*make_runner(model, setup), prompt, 6, 2));
    const auto failure = world->failure();
    EXPECT_FALSE(failure) << failure->what();
  }
}

// No number is taken for one that is not there: not a NaN of all ones either.
TEST(FewRows, OfNansOfAllOnesCome) {
  TokenGraphOptions o;
  o.head_dim = 16, o.hidden = 64;
  for (const DType weight : {DType::kF32, DType::kBF16}) {
    o.weight = weight;
    const DecoderModel model = llama_tokens(o);
    int poisoned = 0;
    for (const Value& value : model.tokens.values) {
      if (!value.constant || value.constant->dims != Dims{o.hidden}) continue;
      std::memset(value.constant->inline_data.data.get(), 0xff, 4);
      ++poisoned;
    }
    EXPECT_GT(poisoned, 0) << "the scales of norms";
    const Rows got =
        run_greedy(*make_runner(model, device(1, 3, 2)), random_tokens(5, 7, o.vocabulary), 4, 2);
    for (const auto& row : got) EXPECT_TRUE(std::isnan(row[0]));
  }
}

// How tiles are dealt must not show: any number of processors, any split of the weights' rows.
// Weights of more pieces than the ring has stages. In lines of 128 bytes each step's are asked for once, and at most as
// many as may wait at any time once more, by the step before.
TEST(WeightsAhead, AreAskedForOnceAndChangeNoBit) {
  TokenGraphOptions o{.kv_heads = 2};
  o.hidden = 64, o.intermediate = 4096;  // whole panels
  const DecoderModel model = llama_tokens(o);
  const auto prompt = random_tokens(3, 7, model.vocabulary);
  std::vector<Rows> rows;
  std::vector<uint64_t> lines;
  for (const int64_t l2 : {int64_t{0}, int64_t{1} << 18, int64_t{1} << 30}) {
    const auto world = std::make_shared<emulator::World>(emulator::Options{});
    RunnerSetup setup = device(1);
    setup.options.gpu =
        std::make_shared<emulator::EmulatedGpu>(world, emulator::EmulatedGpuOptions{.l2 = l2});
    const auto before = world->counts().prefetches;
    rows.push_back(run_greedy(*make_runner(model, setup), prompt, 3, 2));
    lines.push_back(world->counts().prefetches - before);
  }
  EXPECT_TRUE(same_bits(rows[0], rows[1]));
  EXPECT_TRUE(same_bits(rows[0], rows[2]));
  // Of the MLPs, which are nearly all; of what may wait on two processors.
  const auto of_weights = static_cast<uint64_t>(3 * o.layers * o.intermediate * o.hidden * 4 / 128);
  const uint64_t steps = rows[0].size(), waiting = 2 * cuda::kMostAhead * cuda::kStageBytes / 128;
  EXPECT_LT(lines[0], of_weights / 8) << "only norms and attention ask";
  EXPECT_GT(lines[1], lines[0] + steps * of_weights / 4);
  EXPECT_GT(lines[2], lines[1]);
  EXPECT_LT(lines[2], lines[0] + steps * (of_weights + of_weights / 20 + waiting));
}

TEST(Dealing, ChangesNoBit) {
  TokenGraphOptions o;
  o.kv_heads = 2;
  o.intermediate = 640;  // more than one piece to a slab
  o.weight = DType::kF16;
  const DecoderModel model = llama_tokens(o);
  const auto prompt = random_tokens(37, 7, o.vocabulary);
  RunnerSetup first = device(1, 1, 1);
  first.max_tokens = 48;
  const Rows expected = run_greedy(*make_runner(model, first), prompt, 48, 1);
  for (const auto& [processors, groups] : {std::pair{3, 2}, std::pair{4, 8}, std::pair{2, 0}}) {
    RunnerSetup setup = device(1, processors, groups);
    setup.max_tokens = 48;
    EXPECT_TRUE(same_bits(expected, run_greedy(*make_runner(model, setup), prompt, 48, 1)))
        << processors << " processors, " << groups << " groups";
  }
  expect_near_until_a_tie(run_greedy(*make_runner(model, oracle()), prompt, 64, 1), expected);
}

// Products that multiply each other, and rotations with the append, are phases of their own where something stands
// between them: the same numbers, whatever the tiles, also where an output's groups meet. Heads that lie whole in
// panels are rotated and appended by products, others by a phase between.
TEST(Fused, GivesTheBitsOfPhasesApart) {
  struct Case {
    DType weight, kv;
    int processors, groups, arch;
    bool mlp_bias;
    int64_t kv_heads, head_dim;
    bool interleaved;
  };
  for (const Case& c : {Case{DType::kF16, DType::kF32, 3, 0, 900, true, 2, 8, false},
                        Case{DType::kF16, DType::kI8, 3, 4, 900, false, 3, 32, true},
                        Case{DType::kF32, DType::kF16, 2, 2, 890, true, 2, 24, false}}) {
    TokenGraphOptions o;
    o.heads = 6, o.kv_heads = c.kv_heads, o.head_dim = c.head_dim, o.hidden = 96, o.intermediate = 144;
    o.weight = c.weight;
    o.mlp_bias = c.mlp_bias;
    const auto model_of = [&](bool is_apart) {
      o.is_apart = is_apart;
      DecoderModel model = llama_tokens(o);
      for (Node& node : model.tokens.nodes)
        if (node.op == Op::kRotary) node.attributes.set(key::kInterleaved, int64_t{c.interleaved});
      return model;
    };
    const DecoderModel fused = model_of(false), apart = model_of(true);
    RunnerSetup setup = device(1, c.processors, c.groups);
    setup.options.gpu = std::make_shared<emulator::EmulatedGpu>(std::make_shared<emulator::World>(),
                                                                emulator::EmulatedGpuOptions{.arch = c.arch});
    setup.max_tokens = 40;
    setup.kv_dtype = c.kv;
    const auto prompt = random_tokens(37, 7, o.vocabulary);
    const Rows expected = run_greedy(*make_runner(apart, setup), prompt, 40, 2);
    for (const int chunk : {40, 9})
      EXPECT_TRUE(same_bits(expected, run_greedy(*make_runner(fused, setup), prompt, chunk, 2)))
          << name_of(c.weight) << ", chunks of " << chunk;
  }
}

// So many rows of weights that a small GPU's tiles share sums of each of the two by themselves.
TEST(Fused, TakesAnyWidthOnASmallGpu) {
  TokenGraphOptions o;
  o.layers = 1, o.hidden = 8224, o.intermediate = 48;
  const DecoderModel fused = llama_tokens(o);
  o.is_apart = true;
  const DecoderModel apart = llama_tokens(o);
  RunnerSetup setup = device(1, 2, 0);
  setup.options.gpu = std::make_shared<emulator::EmulatedGpu>(std::make_shared<emulator::World>(),
                                                              emulator::EmulatedGpuOptions{.arch = 890});
  const auto prompt = random_tokens(3, o.vocabulary);
  EXPECT_TRUE(same_bits(run_greedy(*make_runner(apart, setup), prompt, 3, 1),
                        run_greedy(*make_runner(fused, setup), prompt, 3, 1)));
}

// A GPU whose blocks get 99 KiB takes smaller tiles: more blocks of rows, and shorter trees whose rest tiles
// that share an output add up. Bits are those of large tiles.
TEST(SmallGpu, ChangesNoBit) {
  for (const DType weight : {DType::kF16, DType::kF32}) {
    TokenGraphOptions o;
    o.layers = 1;
    o.kv_heads = 2;
    o.intermediate = 5680;
    o.weight = weight;
    const DecoderModel model = llama_tokens(o);
    const Compiled compiled = compile_decoder(model, CompileOptions{});
    std::size_t pieces = 0;
    for (const Variant& v : compiled.programs[0].variants)
      if (v.code == OpCode::kMatMul) pieces = std::max(pieces, cuda::pieces_of(v.recipe, 1, 64).size() - 1);
    ASSERT_GT(pieces, std::size_t{1} << (cuda::kSmallTiles.levels - 1)) << "the tree is not cut";
    const auto prompt = random_tokens(37, 7, o.vocabulary);
    std::vector<Rows> results;
    for (const int arch : {900, 890, 1200}) {
      if (arch == 1200 && weight == DType::kF32) continue;  // bulk copies into small blocks: once is enough
      RunnerSetup setup = device(1, 2, 1);
      setup.max_tokens = 48;
      auto gpu = std::make_shared<emulator::EmulatedGpu>(std::make_shared<emulator::World>(),
                                                         emulator::EmulatedGpuOptions{.arch = arch});
      ASSERT_EQ(cuda::tiles_for(gpu->info().shared_per_block).row_block, arch == 900 ? 32 : 16);
      setup.options.gpu = gpu;
      results.push_back(run_greedy(*make_runner(model, setup), prompt, 48, 1));
      EXPECT_TRUE(same_bits(results.front(), results.back())) << arch;
    }
    expect_near_until_a_tie(run_greedy(*make_runner(model, oracle()), prompt, 64, 1), results.front());
  }
}

TokenGraphOptions long_context(int64_t positions) {
  TokenGraphOptions o;
  o.layers = 1, o.heads = 2, o.kv_heads = 1, o.max_positions = positions;
  return o;
}

// Contexts beyond one split of keys.
TEST(LongContext, SplitsOverTiles) {
  const TokenGraphOptions o = long_context(640);
  const DecoderModel model = llama_tokens(o);
  const auto prompt = random_tokens(kSplitKeys + 40, 7, o.vocabulary);
  RunnerSetup cpu = oracle(), gpu = device(1);
  for (RunnerSetup* s : {&cpu, &gpu}) s->max_length = 640, s->max_tokens = 128, s->page_size = 16;
  const Rows expected = run_greedy(*make_runner(model, cpu), prompt, 128, 1);
  const Rows got = run_greedy(*make_runner(model, gpu), prompt, 128, 1);
  expect_near_until_a_tie(expected, got);
  EXPECT_TRUE(same_bits(got, run_greedy(*make_runner(model, gpu), prompt, 97, 1)));
}

// Where splits grow, behind so many tokens that there would be too many: items are cut, and all splits of either size
// are merged, in order, whatever the chunks are, the other sequences, and the longest that may come.
TEST(LongContext, SplitsGrowBehindTheirMost) {
  constexpr int32_t kGrown = kSplitKeys * kMaxSplits, kLongest = kGrown + 64, kBefore = 6, kAfter = 5;
  constexpr int32_t kPage = 32, kLast = 4;
  const TokenGraphOptions o = long_context(3 * kGrown);
  const DecoderModel model = llama_tokens(o);
  const auto tokens = random_tokens(kGrown + kAfter, 7, o.vocabulary);
  // A sequence all of whose tokens but the last ones are there: on the pages of another one, of which each split has
  // other ones, or some oftener; the last page is the last of these.
  const auto opened = [&](RunnerSetup setup, int32_t longest) {
    setup.max_length = longest, setup.max_tokens = 24, setup.page_size = kPage, setup.pages = 12;
    auto runner = make_runner(model, setup);
    Sequence filled{.slot = 0, .tokens = tokens};
    for (int32_t page = 0; filled.cached < (kLast + 1) * kPage;) {
      StepDescriptor step;
      add_chunk(step, filled, 20, kPage, page, false, 0);
      for (int32_t i = 0; filled.cached == 20 && i < kGrown / kPage; ++i) {
        const int32_t some = i % 16 <= i / 16 ? 0 : 1 + i % (kLast - 1);
        step.page_deltas.push_back({1, i, i + 1 < kGrown / kPage ? some : kLast});
      }
      runner->post(step);
      wait_for(*runner);
    }
    return runner;
  };
  const Sequence rest{
      .slot = 1, .tokens = tokens, .cached = kGrown - kBefore, .pages = std::vector<int32_t>(kGrown / kPage)};
  const auto rows_of = [&](const RunnerSetup& setup, const std::vector<int32_t>& chunks, int32_t longest) {
    return run_chunks(*opened(setup, longest), rest, chunks, kLast + 1);
  };
  const std::vector<int32_t> one_by_one(kBefore + kAfter, 1);
  const Rows single = rows_of(device(1), one_by_one, kLongest);
  EXPECT_TRUE(same_bits({single.back()}, {rows_of(device(1), {kBefore + kAfter}, kLongest).back()}));
  EXPECT_TRUE(same_bits({single.back()}, {rows_of(device(1), {2, 9}, kLongest).back()}));
  EXPECT_TRUE(same_bits(single, rows_of(device(1), one_by_one, 3 * kGrown)));
  const Rows expected = rows_of(oracle(), one_by_one, kLongest);
  for (std::size_t r = 0; r < expected.size(); ++r)
    for (std::size_t v = 0; v < expected[r].size(); ++v)
      ASSERT_FALSE(!(std::fabs(expected[r][v] - single[r][v]) <= kDecoderBound)) << "row " << r;

  // Beside it a short one, which has but one split.
  const auto short_row = [&](bool is_alone) {
    const auto runner = opened(device(1), kLongest);
    StepDescriptor step;
    Sequence beside = rest, own{.slot = 2, .tokens = tokens};
    int32_t page = kLast + 1;
    if (!is_alone) add_chunk(step, beside, 1, kPage, page, true, kWantLogits);
    add_chunk(step, own, 7, kPage, page, true, kWantLogits);
    runner->post(step);
    return wait_for(*runner).rows.back().logits;
  };
  EXPECT_TRUE(same_bits({short_row(true)}, {short_row(false)}));
}

// Items tile a run of tokens, are no longer than they may be, and none has splits of two sizes. However long they may
// be on a GPU, there are no more than memory is planned for.
TEST(LongContext, ItemsAreAlike) {
  for (const int position : {0, 1, 500, 4095, 4096, 8190, 16380, 100'000}) {
    for (const int count : {1, 15, 16, 17, 100, 5000, 40'000}) {
      for (const int most : {int{kItemTokens}, 18, 25, 42, 128}) {
        int items = 0;
        for (int done = 0, own = 0; done < count; done += own, ++items) {
          own = item_tokens(position + done, count - done, most);
          ASSERT_GT(own, 0);
          ASSERT_LE(own, most);
          const int first = position + done, keys = split_keys(first);
          ASSERT_EQ(split_keys(first + own - 1), keys);
          ASSERT_LE((first + own - 1) / keys, kMaxSplits - 1);
          ASSERT_LE((first + own - 1) / keys + 1, most_splits(position + count));
        }
        EXPECT_EQ(items, count_items(position, count, most));
        EXPECT_LE(items, count_items(position, count, kItemTokens));
        EXPECT_LE(items, most_items(count, 1)) << position << " + " << count;
      }
    }
  }
}

// As large as strips take, but where most processors would have no tile.
TEST(LongContext, ItemsAreLargeWhereProcessorsHaveTiles) {
  EXPECT_EQ(cuda::strip_tokens(1), 128);
  EXPECT_EQ(cuda::strip_tokens(5), 25);
  EXPECT_EQ(cuda::strip_tokens(20), kItemTokens);
  EXPECT_EQ(cuda::item_tokens_of(32, 4, 8, 2048, 2048, 132), 32);
  EXPECT_EQ(cuda::item_tokens_of(32, 4, 8, 200, 200, 132), kItemTokens);
  EXPECT_EQ(cuda::item_tokens_of(32, 4, 8, 200, 5000, 132), 32) << "keys in eight splits";
  EXPECT_EQ(cuda::item_tokens_of(128, 16, 12, 512, 512, 132), kItemTokens);
  // Of few tokens one strip's rows.
  EXPECT_EQ(cuda::item_tokens_of(32, 4, 8, 16, 16, 132), 4);
  EXPECT_EQ(cuda::item_tokens_of(16, 2, 8, 16, 16, 132), 2);
  EXPECT_EQ(cuda::item_tokens_of(32, 4, 8, 16, 5000, 132), kItemTokens) << "keys in eight splits";
  EXPECT_EQ(cuda::item_tokens_of(32, 4, 32, 16, 1000, 132), kItemTokens) << "more tiles than processors";
  EXPECT_EQ(cuda::item_tokens_of(32, 4, 8, 17, 17, 132), kItemTokens);
  // Which are no more items than memory is planned for, whatever the sequences are.
  for (const int32_t most : {1, 5, 16, 64}) {
    for (int32_t sequences = 1; sequences <= 16; ++sequences) {
      for (int32_t tokens = 1; tokens <= std::min(most, int32_t{kItemTokens}); ++tokens)
        EXPECT_LE(tokens, most_items(most, sequences));
    }
  }
}

}  // namespace
}  // namespace ark::test
