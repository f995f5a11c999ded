// cuda::Gpu over the emulator: device memory is the machine's, sources are compiled by g++ into shared
// objects (kept by content in the build folder), launches run on a thread of the world.
//
//   auto world = std::make_shared<World>(Options{.schedule = Schedule::kRandom, .seed = 7, .detector =
//   true}); EmulatedGpu gpu(world, {.processors = 4});
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/cuda/gpu.h"
#include "tests/emulator/emulator.h"
#include "tests/emulator/ptx/ptx.h"

namespace ark::emulator {

// GPUs that run together, and the thread that runs their kernels. After a failure all its GPUs are lost.
class World {
 public:
  explicit World(const Options& options = {}) : machine_(options) {}
  ~World();

  Memory& memory() { return machine_.memory(); }  // any thread
  const Options& options() const { return machine_.options(); }
  int add_gpu() { return gpus_++; }

  struct Run {
    LaunchRequest request;
    Machine::LaunchId id = 0;
    std::atomic<bool> is_running{true};
  };
  std::shared_ptr<Run> launch(LaunchRequest request);
  // Set once a kernel has failed.
  std::optional<Failure> failure() const;
  Counts counts() const;

 private:
  void drive();
  void start_pending();

  mutable std::mutex mutex_;  // guards all but machine_, which belongs to the thread while it runs
  std::condition_variable changed_;
  Machine machine_;
  std::vector<std::shared_ptr<Run>> pending_, running_;
  std::optional<Failure> failure_;
  Counts counts_;
  bool ends_ = false;
  std::atomic<int> gpus_{0};
  std::thread thread_;
};

struct EmulatedGpuOptions {
  int processors = 4;
  int64_t memory = int64_t{1} << 30;
  int64_t l2 = int64_t{1} << 20;
  int arch = 900;            // as __CUDA_ARCH__
  bool seeded_bugs = false;  // compile ARK_BUG places in; Options::bug chooses
  bool as_ptx = false;       // what NVRTC makes of kernels, interpreted (ptx/), in place of g++'s
  std::shared_ptr<ptx::WorkLog> work = nullptr;  // as PTX: counts what blocks do (ptx/work_log.h)
  bool shares = true;                            // memory with other GPUs
  // What makes writes of the NIC visible; null: it has no memory that NICs reach.
  std::function<bool()> flush = {};
  // As PTX: of a source before it is compiled, to plant faults.
  std::function<void(cuda::KernelSource&)> change = {};
};

class EmulatedGpu final : public cuda::Gpu {
 public:
  explicit EmulatedGpu(std::shared_ptr<World> world, const EmulatedGpuOptions& options = {});

  const cuda::GpuInfo& info() const override { return info_; }
  uint64_t allocate(uint64_t bytes, const std::string& what) override;
  void release(uint64_t address) override;
  uint64_t free_bytes() override;
  cuda::MappedMemory allocate_mapped(uint64_t bytes, const std::string& what) override;
  void release(const cuda::MappedMemory& memory) override;
  uint64_t map(std::byte* host, uint64_t bytes) override;
  void unmap(std::byte* host) override;
  cuda::SharedBlock allocate_shared(uint64_t bytes, const std::string& what,
                                    cuda::BlockHandle& handle) override;
  cuda::SharedBlock open_shared(const cuda::BlockHandle& handle, uint64_t bytes) override;
  cuda::NicBlock allocate_for_nic(uint64_t bytes, const std::string& what) override;
  bool flush_nic_writes() noexcept override;
  void upload(uint64_t to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, uint64_t from) override;
  void fill(uint64_t address, uint64_t bytes, std::byte value) override;
  std::unique_ptr<cuda::Kernel> load(const cuda::KernelSource& source) override;

  World& world() { return *world_; }

 private:
  void check_device(uint64_t address, uint64_t bytes) const;
  cuda::SharedBlock shared_block(std::byte* begin, uint64_t bytes);

  std::shared_ptr<World> world_;
  EmulatedGpuOptions options_;
  int number_;
  cuda::GpuInfo info_;
  mutable std::mutex mutex_;  // guards sizes_, shared_
  std::map<uint64_t, uint64_t> sizes_;
  uint64_t used_ = 0;
  std::map<uint64_t, uint64_t> shared_;  // blocks that it has mapped: begin, bytes
};

// A shared object with the source's entry, compiled or taken from the cache. `seconds`: 0 if it was there.
// Throws Error(kInternal) with the compiler's first lines.
std::string compile_kernel(const cuda::KernelSource& source, const std::vector<std::string>& flags,
                           double* seconds);

using KernelFunction = std::function<void(const void*)>;
// Of such a shared object, which stays: a failed launch may leave fibers that stand in it.
KernelFunction load_kernel(const std::string& library, const std::string& entry);
// Of NVRTC's PTX for "compute_90a", and what was parsed. Throws Error where there is no NVRTC.
KernelFunction load_ptx(const cuda::KernelSource& source, const std::string& arch,
                        std::shared_ptr<const ptx::Module>* module = nullptr,
                        std::shared_ptr<ptx::WorkLog> work = nullptr);

}  // namespace ark::emulator
