// Where a model runs: --device cpu|cuda|auto and --numerics exact|fast, for servers and tools alike.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/cuda/executor.h"
#include "engine/program.h"

namespace CLI {
class App;
}

namespace ark {

enum class Device : uint8_t { kAuto, kCpu, kCuda };

struct DeviceChoice {
  Device device = Device::kAuto;
  cuda::Numerics numerics = cuda::Numerics::kExact;
  int32_t trace_events = 0;  // of a timeline, per processor; 0: none
};

// Declares both options on `app`, which writes to `choice` when it parses.
void add_device_options(CLI::App& app, DeviceChoice& choice);

// The GPU, or null: then `why` says why the CPU is used. Throws Error(kUnavailable) where a GPU was asked for
// and there is none.
std::shared_ptr<cuda::Gpu> choose_gpu(Device device, std::string* why);

// Empty if the GPU has code for every phase, else the first one without and why.
std::string why_not_on_gpu(const std::vector<Program>& programs, cuda::Numerics numerics);

// For the start-up log: "NVIDIA H200 (sm_90a, ...), 132 processors a rank, 96 registers, compiled in 1.2 s".
std::string describe(const cuda::DeviceExecutor& executor, const cuda::Gpu& gpu);

}  // namespace ark
