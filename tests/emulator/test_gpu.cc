#include "tests/conformance/cuda/test_gpu.h"

#include <cstdlib>

#include "engine/cuda/driver.h"
#include "tests/emulator/emulated_gpu.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

bool wants_real_gpu() { return std::getenv("ARK_GPU") != nullptr; }
constexpr int32_t kProcessors = 2;  // of a rank on the emulator

}  // namespace

// ARK_GPU=1: the machine's GPU, which every test then shares.
std::shared_ptr<cuda::Gpu> test_gpu(const TestSchedule& schedule) {
  if (wants_real_gpu()) {
    static const std::shared_ptr<cuda::Gpu> gpu = cuda::open_gpu();
    return gpu;
  }
  using namespace emulator;
  Options options;
  options.schedule = schedule.seed == 0 ? Schedule::kFixed : Schedule::kRandom;
  options.landing = schedule.seed == 0 ? Landing::kLate : Landing::kRandom;
  options.seed = schedule.seed == 0 ? 1 : schedule.seed;
  options.detector = schedule.detector;
  return std::make_shared<EmulatedGpu>(std::make_shared<World>(options),
                                       EmulatedGpuOptions{.processors = 4 * kProcessors});
}

int32_t test_processors() { return wants_real_gpu() ? 0 : kProcessors; }

int test_schedules() {
  if (wants_real_gpu()) return 200;
  return rounds(10, 200);
}

}  // namespace ark::test
