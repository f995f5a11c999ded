// A GPU as the device executor sees it. Two implementations: the CUDA driver, opened at run time
// (engine/cuda/driver.h), and the emulator of the tests, whose device memory is host memory.
//
// Device memory is named by its address (uint64_t, as kernels see it). Everything here but
// Launch::is_running() and Gpu::flush_nic_writes() is context work: it may synchronise with, or wait for, a
// running kernel, so callers do it inside Gate::Work (engine/cuda/gate.h), while no loop runs. Errors:
// Error(kExhausted) where memory is used up, Error(kUnsupported) where the GPU cannot do what is asked,
// Error(kUnavailable) once it is lost (Gate::is_lost()); destructors and releases then do nothing, since they could
// wait for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "engine/cuda/gate.h"

namespace ark::cuda {

struct GpuInfo {
  std::string name;              // as the driver calls it
  std::string arch;              // what code is compiled for: "sm_80", "sm_90a", "sm_100a"
  std::string versions;          // of driver and compiler; part of the key of compiled code
  int32_t processors = 0;        // SMs
  int32_t shared_per_block = 0;  // bytes that one block may ask for, at most
  int64_t memory = 0;            // bytes of device memory
  int64_t l2 = 0;                // bytes of its second cache; 0: unknown
  int32_t clock_khz = 0;         // of the SMs, at most; 0: unknown
  double memory_rate = 0;        // bytes a second, as the memory's clock and bus say; 0: unknown
  bool is_emulated = false;
};

struct SourceFile {
  std::string name;  // as #include names it
  std::string text;
};

// A translation unit with everything that it includes: no include path, no toolkit.
struct KernelSource {
  std::string text;
  std::vector<SourceFile> headers;  // also those that headers include
  std::vector<std::string> flags;   // -DNAME=VALUE only, so that every compiler understands them
  std::string entry = "ark_loop";   // extern "C" __global__ function with one POD parameter
  // Of an entry whose warps move registers, on architectures with a name in `a`: how many a thread must have at the
  // launch, since who takes some would else wait for ever; and the flag by which they keep what they have. 0: of none.
  int32_t launch_registers = 0;
  std::string keeping_flag = {};
};

// What the compiler made of an entry; 0 where unknown.
struct KernelFacts {
  int32_t registers = 0;       // a thread
  int32_t spilled_bytes = 0;   // registers that went to memory, a thread
  int32_t stack_bytes = 0;     // frames of called functions, a thread
  int32_t static_shared = 0;   // bytes a block
  double compile_seconds = 0;  // 0: came from the cache
};

struct LaunchShape {
  int32_t blocks = 0;        // all resident at once, or launch() refuses
  int32_t threads = 0;       // a block
  int32_t shared_bytes = 0;  // dynamic, a block
  // The launch replays a CUDA graph whose one node is the kernel, built at the first such launch: for
  // measurements. Throws Error(kUnavailable) where the driver lacks what it takes; emulated GPUs have none.
  bool as_graph = false;
  bool operator==(const LaunchShape&) const = default;
};

// A running kernel. The destructor waits for its end, unless the GPU is lost: end it first (park or abort word).
class Launch {
 public:
  virtual ~Launch() = default;
  // Any thread, not context work. Throws Error(kUnavailable) if the kernel died (a trap, a bad address); the
  // GPU is lost then.
  virtual bool is_running() = 0;
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual const KernelFacts& facts() const = 0;
  // Blocks of this shape that are resident at once on the whole GPU (0: the shape does not fit at all).
  virtual int32_t resident_blocks(int32_t threads, int32_t shared_bytes) = 0;
  // Cooperative: all blocks run at the same time. Throws Error(kUnsupported) naming blocks asked for and
  // possible if they cannot. `parameter` is copied.
  virtual std::unique_ptr<Launch> launch(const LaunchShape& shape, std::span<const std::byte> parameter) = 0;
};

// Host memory that kernels reach too, by their own address. Zeroed.
struct MappedMemory {
  std::byte* host = nullptr;
  uint64_t device = 0;
  uint64_t bytes = 0;
};

// Device memory that several GPUs store into, one's own or a peer's, mapped for this GPU.
struct SharedBlock {
  uint64_t address = 0;
  uint64_t bytes = 0;
  // Unmaps it; the memory goes with the last GPU that has it mapped. The Gpu outlives it.
  std::shared_ptr<void> owner;
};
// By what other GPUs, of this process or another, get at a block.
struct BlockHandle {
  Descriptor file;     // of this machine; to be handed over as one (dma/hand_round.h)
  std::string fabric;  // the driver's text of it where GPUs have a fabric: also for others; else empty
};

// Device memory that NICs of this machine read and write, by a dma-buf of the driver's.
struct NicBlock {
  uint64_t address = 0;
  uint64_t bytes = 0;
  Descriptor file;              // from its first byte on
  std::shared_ptr<void> owner;  // as SharedBlock's; no NIC may have it registered any more
};

// What every launch() begins with: throws Error(kUnsupported) if not all blocks can be resident at once.
void refuse_unless_resident(Kernel& kernel, const LaunchShape& shape);

class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual const GpuInfo& info() const = 0;
  Gate& gate() { return gate_; }

  // Device memory, aligned to 256 bytes. `what` is for the error message.
  virtual uint64_t allocate(uint64_t bytes, const std::string& what) = 0;
  virtual void release(uint64_t address) = 0;
  virtual uint64_t free_bytes() = 0;
  virtual MappedMemory allocate_mapped(uint64_t bytes, const std::string& what) = 0;
  virtual void release(const MappedMemory& memory) = 0;
  // Lets kernels reach memory that the process has already (dma regions); it stays the caller's.
  virtual uint64_t map(std::byte* host, uint64_t bytes) = 0;
  virtual void unmap(std::byte* host) = 0;

  // Memory of this GPU for other GPUs to store into, with what they get at it by. Throws Error(kUnsupported) where the
  // GPU shares none, as allocate() else.
  virtual SharedBlock allocate_shared(uint64_t bytes, const std::string& what, BlockHandle& handle);
  // Another GPU's, or this one's of another process. Throws Error(kUnsupported) where this GPU does not reach it.
  virtual SharedBlock open_shared(const BlockHandle& handle, uint64_t bytes);

  // Throws Error(kUnsupported) where no NIC can read and write it, or where what one has written could not be made
  // visible to kernels.
  virtual NicBlock allocate_for_nic(uint64_t bytes, const std::string& what);
  // What NICs had written into such memory when it was called, kernels see once it has returned, also those that run.
  // False: the driver refuses, or the GPU is lost. Any thread.
  virtual bool flush_nic_writes() noexcept;

  // Done when they return. Shared blocks of other GPUs too.
  virtual void upload(uint64_t to, std::span<const std::byte> from) = 0;
  virtual void download(std::span<std::byte> to, uint64_t from) = 0;
  virtual void fill(uint64_t address, uint64_t bytes, std::byte value) = 0;
  void clear(uint64_t address, uint64_t bytes) { fill(address, bytes, std::byte{0}); }

  // Compiles, or takes from the cache. Throws Error(kInternal) with the compiler's first complaint.
  virtual std::unique_ptr<Kernel> load(const KernelSource& source) = 0;

 private:
  Gate gate_;
};

// Device memory with an owner. The Gpu outlives it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(Gpu& gpu, uint64_t bytes, const std::string& what)
      : gpu_(&gpu), address_(gpu.allocate(bytes, what)), bytes_(bytes) {}
  ~DeviceMemory() { reset(); }
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    if (this == &other) return *this;
    reset();
    gpu_ = std::exchange(other.gpu_, nullptr);
    address_ = std::exchange(other.address_, 0);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void reset() noexcept {
    if (gpu_) gpu_->release(address_);
    gpu_ = nullptr;
  }
  Gpu* gpu_ = nullptr;
  uint64_t address_ = 0, bytes_ = 0;
};

}  // namespace ark::cuda
