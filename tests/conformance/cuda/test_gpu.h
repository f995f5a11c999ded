// The GPU that the device suite runs on: an emulated one, or the machine's where ARK_GPU=1 says so
// (scripts/gpu-check.sh).
#pragma once

#include <cstdint>
#include <memory>

#include "engine/cuda/executor.h"

namespace ark::test {

// How the threads of an emulated GPU take turns; a real one does as it likes.
struct TestSchedule {
  uint64_t seed = 0;  // 0: fixed order
  bool detector = false;
};

std::shared_ptr<cuda::Gpu> test_gpu(const TestSchedule& schedule);
// Processors per rank: few on an emulator, 0 (all) on a GPU.
int32_t test_processors();
// How many random schedules a test tries.
int test_schedules();

}  // namespace ark::test
