// Products whose rows are in two blocks in steps of more than eight and no more than 32 (Stream::some_blocks), and
// whose tiles share outputs in steps of more (Stream::more_groups): each row has the bits that it has in a step of few.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/emulator/emulated_gpu.h"
#include "tests/emulator/product_tiles.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

constexpr int32_t kTokens = 40;

struct BlocksCase {
  const char* name;
  bool is_gpt2;
  DType weight;
  std::vector<int32_t> chunks;  // tokens of a step
  DType kv = DType::kF32;
  int64_t head_dim = 32;
};

DecoderModel model_of(const BlocksCase& c) {
  TokenGraphOptions o{.layers = 1, .hidden = 1024, .heads = 4, .kv_heads = 2, .head_dim = c.head_dim};
  o.intermediate = 448, o.max_positions = 128, o.vocabulary = 300;
  o.weight = c.weight;
  if (!c.is_gpt2) return llama_tokens(o);
  o.kv_heads = o.heads;
  return gpt2_tokens(o);
}

RunnerSetup setup_of(const BlocksCase& c) {
  RunnerSetup setup;
  setup.max_tokens = kTokens, setup.max_length = kTokens + 8, setup.page_size = 16;
  setup.max_rows = kTokens, setup.kv_dtype = c.kv;
  setup.options.step_deadline = std::chrono::seconds(120);
  setup.options.gpu = std::make_shared<emulator::EmulatedGpu>(std::make_shared<emulator::World>(),
                                                              emulator::EmulatedGpuOptions{.processors = 12});
  setup.options.device.processors = 12;
  return setup;
}

// Products of a step of so many rows, of no more than 32, that have two blocks of them, none of which shares outputs.
int halved_products(const DecoderModel& model, const RunnerSetup& setup, int32_t rows) {
  const auto all = product_tiles(model, setup, rows);
  return static_cast<int>(std::ranges::count_if(all, [](const cuda::StreamTiles& tiles) {
    return !tiles.wide && tiles.blocks == 2 && tiles.groups == 1;
  }));
}

class RowBlocks : public ::testing::TestWithParam<BlocksCase> {};

TEST_P(RowBlocks, HaveTheBitsOfStepsOfFewRows) {
  const BlocksCase& c = GetParam();
  const DecoderModel model = model_of(c);
  const RunnerSetup setup = setup_of(c);
  EXPECT_EQ(halved_products(model, setup, cuda::kFewRows), 0);
  const auto prompt = random_tokens(kTokens, 11, 300);
  const auto logits_of = [&](int32_t chunk) { return all_rows(*make_runner(model, setup), prompt, chunk); };
  const auto few = logits_of(cuda::kFewRows);
  for (const int32_t chunk : c.chunks) {
    EXPECT_GT(halved_products(model, setup, chunk), 0) << chunk << " rows: this would show nothing";
    EXPECT_TRUE(same_bits(few, logits_of(chunk))) << chunk << " rows";
  }
}
INSTANTIATE_TEST_SUITE_P(
    All, RowBlocks,
    ::testing::Values(BlocksCase{"LlamaInF16", false, DType::kF16, {9, 12, 16}, DType::kF16},
                      BlocksCase{"Gpt2InBf16", true, DType::kBF16, {11, 16}},
                      BlocksCase{"LlamaInF32", false, DType::kF32, {10, 17, 20, 32}},
                      BlocksCase{"KeysWithScales", false, DType::kF16, {12}, DType::kI8},
                      BlocksCase{"HeadsThatAreAppendedApart", false, DType::kF16, {12}, DType::kF32, 24}),
    [](const auto& info) { return std::string(info.param.name); });

// Beyond as many rows as a tile may have tiles of several blocks share outputs, too, where there are few.
TEST(RowBlocks, ShareOutputsAndHaveTheBitsOfStepsOfFewRows) {
  for (const DType weight : {DType::kF32, DType::kF16}) {
    TokenGraphOptions o = {.layers = 2, .hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 16};
    o.intermediate = 1024, o.vocabulary = 300, o.max_positions = 128, o.weight = weight;
    const bool are_codes = weight != DType::kF32;  // on a GPU whose products have no wide tiles
    if (are_codes) o.bits = 4, o.block = 32, o.intermediate = 4096;
    const DecoderModel model = llama_tokens(o);
    RunnerSetup setup = setup_of({"", false, weight, {}, DType::kF32});
    setup.max_tokens = setup.max_rows = 100, setup.max_length = 108, setup.pages = 16;
    setup.options.device.told_rows = cuda::kMostToldRows;
    if (are_codes)
      setup.options.gpu = std::make_shared<emulator::EmulatedGpu>(
          std::make_shared<emulator::World>(), emulator::EmulatedGpuOptions{.processors = 12, .arch = 890});
    const auto prompt = random_tokens(100, 11, 300);
    const auto logits_of = [&](int32_t chunk) { return all_rows(*make_runner(model, setup), prompt, chunk); };
    const auto few = logits_of(cuda::kFewRows);
    for (const int32_t chunk : {34, 100}) {
      EXPECT_TRUE(std::ranges::any_of(
          product_tiles(model, setup, chunk),
          [](const cuda::StreamTiles& tiles) { return !tiles.wide && tiles.blocks > 1 && tiles.groups > 1; }))
          << chunk << " rows: this would show nothing";
      const cuda::TileShape& tiles = are_codes ? cuda::kSmallTiles : cuda::kLargestTiles;
      EXPECT_EQ(tells(model, setup, chunk),
                chunk <= 2 * tiles.row_block);  // at most: engine/cuda/image_told.cc
      EXPECT_TRUE(same_bits(few, logits_of(chunk))) << chunk << " rows";
    }
  }
}

}  // namespace
}  // namespace ark::test
