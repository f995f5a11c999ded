// Whole loop kernels as NVRTC compiles them: their PTX, interpreted, serves decoders to the oracle's tokens and nearly
// its logits. Closes the gap between the loop that g++ compiles for the emulator and the one that a GPU gets.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/cuda/nvrtc.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

struct PtxLoop {
  const char* name;
  bool gpt2;
  DType weight;
  int ranks, arch;
  int32_t tokens = 7;       // of the prompt
  int64_t shares_from = 0;  // DeviceOptions
};
class PtxOfLoops : public ::testing::TestWithParam<PtxLoop> {};
TEST_P(PtxOfLoops, GivesTheOraclesTokens) {
  if (!cuda::open_nvrtc()) GTEST_SKIP() << "no NVRTC";
  const PtxLoop& c = GetParam();
  const DecoderModel model = gpt2_or_llama(c.gpt2, c.weight);
  std::vector<int32_t> prompt = {5, 80, 3, 99, 17, 42, 7};
  while (std::ssize(prompt) < c.tokens) prompt.push_back(prompt[prompt.size() - 7] % 97 + 1);
  RunnerSetup setup;
  setup.options.lockstep = true;
  setup.options.threads = 1;
  const Rows expected = run_greedy(*make_runner(model, setup), prompt, 64, 2);
  setup = {};
  setup.ranks = c.ranks;
  setup.max_tokens = c.tokens + 1;
  setup.options.device.shares_from = c.shares_from;
  setup.options.device.processors = 2;
  setup.options.step_deadline = std::chrono::seconds(120);
  setup.options.gpu = std::make_shared<emulator::EmulatedGpu>(
      std::make_shared<emulator::World>(emulator::Options{.detector = true}),
      emulator::EmulatedGpuOptions{.processors = 4, .arch = c.arch, .as_ptx = true});
  const Rows got = run_greedy(*make_runner(model, setup), prompt, c.tokens + 1, 2);
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    for (std::size_t j = 0; j < got[i].size(); ++j)  // the bound of tests/conformance/cuda/executor_test.cc
      ASSERT_TRUE(std::fabs(expected[i][j] - got[i][j]) <=
                  2.5e-4f * std::max(1.0f, std::fabs(expected[i][j])))
          << "row " << i << " logit " << j << ": " << expected[i][j] << " and " << got[i][j];
  }
}
INSTANTIATE_TEST_SUITE_P(, PtxOfLoops,
                         ::testing::Values(PtxLoop{"gpt2_f16", true, DType::kF16, 1, 900},
                                           PtxLoop{"llama_bf16_two_ranks", false, DType::kBF16, 2, 900},
                                           PtxLoop{"llama_bf16_shares_of_two_ranks", false, DType::kBF16, 2,
                                                   900, 40, 1},
                                           PtxLoop{"llama_f32_sm80", false, DType::kF32, 1, 800}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ark::test
