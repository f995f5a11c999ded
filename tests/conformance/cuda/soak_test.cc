// Long and rough runs on a real GPU (ARK_GPU=1), a short one on the emulator elsewhere: repeated steps give
// equal bytes, ranks share the GPU.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/conformance/cuda/test_gpu.h"
#include "tests/engine/driving.h"
#include "tests/engine/token_graphs.h"

namespace ark::test {
namespace {

RunnerSetup setup_of(int ranks, std::shared_ptr<cuda::Gpu> gpu) {
  RunnerSetup setup;
  setup.ranks = ranks;
  setup.options.gpu = std::move(gpu);
  setup.options.device.processors = test_processors();
  return setup;
}

TEST(DeviceSoak, RepeatedStepsGiveEqualBytes) {
  const auto gpu = test_gpu({});
  const int steps = std::getenv("ARK_GPU") ? 1000 : 10;
  const auto runner = make_runner(gpt2_tokens(), setup_of(2, gpu));
  Sequence s{.slot = 0, .tokens = {5, 17, 3, 99, 54, 21, 8}};
  int32_t next_page = 0;
  std::vector<float> first;
  for (int i = 0; i < steps; ++i) {
    s.cached = 0;  // the same tokens into the same pages
    StepDescriptor step;
    add_chunk(step, s, 7, 4, next_page, true, kWantLogits);
    runner->post(step);
    const StepResult result = wait_for(*runner);
    if (i == 0) first = result.rows[0].logits;
    ASSERT_TRUE(same_bits({first}, {result.rows[0].logits})) << "step " << i;
  }
}

TEST(DeviceSoak, FourRanksShareTheGpu) {
  const auto gpu = test_gpu({});
  const std::vector<int32_t> prompt = {5, 17, 3, 99, 54};
  const auto one = run_greedy(*make_runner(gpt2_tokens(), setup_of(1, gpu)), prompt, 64, 2);
  const auto four = run_greedy(*make_runner(gpt2_tokens(), setup_of(4, gpu)), prompt, 64, 2);
  ASSERT_EQ(one.size(), four.size());
  for (std::size_t i = 0; i < one.size(); ++i)
    for (std::size_t j = 0; j < one[i].size(); ++j) ASSERT_TRUE(std::abs(one[i][j] - four[i][j]) <= 2.5e-4f);
}

}  // namespace
}  // namespace ark::test
