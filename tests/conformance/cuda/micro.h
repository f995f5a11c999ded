// What the loop's primitives cost on a GPU, each measured by itself (kernel: tests/conformance/cuda/micro_kernel.h).
#pragma once

#include <string>
#include <vector>

#include "engine/cuda/gpu.h"

namespace ark::cuda {

struct MicroResult {
  std::string name;
  double nanoseconds = 0;  // a round
};

// Barrier of the whole grid, a counter's hop from block to block, an all-reduce of 8 KiB between two ranks on
// the GPU, a word to the host and back, a message of 8 KiB that a pump carries from request to arrival.
// Throws Error(kUnavailable) if a wait passes its deadline, Error(kInternal) if bytes are wrong. Parks the
// GPU's loops.
std::vector<MicroResult> measure_micro(Gpu& gpu, int rounds);

}  // namespace ark::cuda
