// Where and in which types a model runs: --device, --numerics, --weights, --activations, --kv-dtype, for
// servers and tools alike.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/disk_cache.h"
#include "engine/compile.h"
#include "engine/cuda/executor.h"

namespace ark {

class CommandLine;

enum class Device : uint8_t { kAuto, kCpu, kCuda };
// The loop stays while it is busy; goes after each step; the same, and each launch replays a CUDA graph.
enum class LoopLaunch : uint8_t { kLoop, kStep, kGraph };

struct DeviceChoice {
  Device device = Device::kAuto;
  cuda::Numerics numerics = cuda::Numerics::kExact;
  int32_t trace_events = 0;                      // of a timeline, per processor; 0: none
  LoopLaunch launch = LoopLaunch::kLoop;         // kGraph: not with Device::kCpu
  int32_t processors = 0, groups = 0;            // as of cuda::DeviceOptions; not with Device::kCpu
  Activations activations = Activations::kAuto;  // on a GPU: f32
  WeightPolicy weights = WeightPolicy::kExact;
  // Of cached keys and values; kUndefined: f32, on a GPU 16 bits where weights, what codes are rounded from, or codes'
  // scales have.
  DType kv_dtype = DType::kUndefined;
};

// Declares the options, which are written to `choice`; --weights, --activations and --kv-dtype alone.
void add_device_options(CommandLine& line, DeviceChoice& choice);
void add_arithmetic_options(CommandLine& line, DeviceChoice& choice);
void add_numerics_option(CommandLine& line, DeviceChoice& choice);
void add_weights_option(CommandLine& line, const std::string& name, WeightPolicy& weights,
                        const std::string& help);

// The GPU, its kernels kept in `cache` (null: as open_gpu), or null: then `why` says why the CPU is used. Throws
// Error(kUnavailable) where a GPU was asked for and there is none.
std::shared_ptr<cuda::Gpu> choose_gpu(Device device, std::string* why,
                                      std::shared_ptr<const DiskCache> cache);

// Whether ranks in processes are to reach each other in their GPUs' memory, themselves or by NICs: ARK_GPU_LINKS is
// unset or "auto", not "host". Throws Error(kUsage) for other values.
bool wants_peer_links();

// How ranks in processes would exchange on this machine's GPUs, as far as the driver says; empty without CUDA.
std::vector<cuda::PairWay> ways_between_gpus(int ranks);

// How they would over `verbs`, where not GPU to GPU, as far as the driver says; empty without CUDA.
std::string way_by_nic();

// The kernel's cases that the programs need. Throws Error(kUnsupported) naming the first phase that has none.
cuda::VariantSet variants_of(const std::vector<Program>& programs, cuda::Numerics numerics);
// Empty if the GPU has code for every phase, else the first one without and why.
std::string why_not_on_gpu(const std::vector<Program>& programs, cuda::Numerics numerics);

// Of the program's weights as they are packed.
int64_t weight_bytes(const Program& program);

// The GPU of a rank process: they take the driver's GPUs in turn.
inline int gpu_of_rank(int rank, int gpus) { return rank % gpus; }

// Pages of keys and values that the GPUs of all ranks have room for, each beside its ranks' weights and
// activations; less than 1 where not even these fit. `free`: bytes, of each GPU that ranks are spread over,
// with one context there already. `processes`: each rank is one, whose context takes room too.
int64_t pages_with_room(const Compiled& compiled, std::span<const int64_t> free, bool processes);

// For the start-up log: "NVIDIA H200 (sm_90a, ...), 132 processors a rank, 96 registers, compiled in 1.2 s".
std::string describe(const cuda::DeviceExecutor& executor, const cuda::Gpu& gpu);

}  // namespace ark
