#include "engine/cuda/driver.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "engine/cuda/block_layout.h"
#include "engine/cuda/cache.h"
#include "engine/cuda/driver_context.h"
#include "engine/cuda/launch_graph.h"
#include "engine/cuda/nvrtc.h"
#include "engine/cuda/shared_memory.h"

namespace ark::cuda {
namespace {

constexpr int kOldestMajor = 8;  // cp.async, mma of 16-bit types

class CudaLaunch final : public Launch {
 public:
  CudaLaunch(const Driver& driver, DriverEvent end) : driver_(driver), end_(end) {}
  ~CudaLaunch() override {
    if (driver_.is_lost()) return;
    const DriverApi& api = driver_.use();
    api.event_wait(end_);
    api.event_destroy(end_);
  }
  bool is_running() override {
    const int result = driver_.use().event_query(end_);
    if (result == kDriverNotReady) return true;
    if (result != kDriverSuccess)
      throw Error(Code::kUnavailable, "the loop kernel died: " + driver_.text(result));
    return false;
  }

 private:
  const Driver& driver_;
  DriverEvent end_;
};

class CudaKernel final : public Kernel {
 public:
  CudaKernel(const Driver& driver, DriverStream stream, int32_t processors, const KernelFacts& facts,
             DriverModule module, const std::string& entry)
      : driver_(driver), stream_(stream), processors_(processors), facts_(facts), module_(module) {
    const DriverApi& api = driver_.use();
    if (const int result = api.module_function(&function_, module_, entry.c_str())) {
      api.module_unload(module_);
      driver_.check(result, "entry " + entry);
    }
  }
  ~CudaKernel() override {
    graph_.reset();
    if (!driver_.is_lost()) driver_.use().module_unload(module_);
  }

  const KernelFacts& facts() const override { return facts_; }

  int32_t resident_blocks(int32_t threads, int32_t shared_bytes) override {
    const DriverApi& api = driver_.use();
    if (api.function_set(function_, kFunctionDynamicShared, shared_bytes) != kDriverSuccess) return 0;
    int each = 0;
    driver_.check(api.resident_blocks(&each, function_, threads, static_cast<std::size_t>(shared_bytes)),
                  "the occupancy of the loop");
    return each * processors_;
  }

  std::unique_ptr<Launch> launch(const LaunchShape& shape, std::span<const std::byte> parameter) override {
    const DriverApi& api = driver_.use_unless_lost();
    const bool is_built = shape.as_graph && graph_ && graph_->shape() == shape;
    if (!is_built) refuse_unless_resident(*this, shape);
    DriverEvent end = nullptr;
    driver_.check(api.event_create(&end, kEventNoTiming), "an event");
    auto launch = std::make_unique<CudaLaunch>(driver_, end);
    if (shape.as_graph) {
      if (!is_built) graph_ = std::make_unique<LaunchGraph>(driver_, function_, shape, parameter);
      graph_->replay(parameter, stream_);
    } else {
      void* arguments[] = {const_cast<std::byte*>(parameter.data())};
      driver_.check(api.launch_cooperative(function_, static_cast<unsigned>(shape.blocks), 1, 1,
                                           static_cast<unsigned>(shape.threads), 1, 1,
                                           static_cast<unsigned>(shape.shared_bytes), stream_, arguments),
                    "the launch of the loop");
    }
    if (const int result = api.event_record(end, stream_)) {
      api.stream_wait(stream_);  // nobody would see it run; its own limits end it
      driver_.check(result, "an event");
    }
    return launch;
  }

 private:
  const Driver& driver_;
  DriverStream stream_;
  int32_t processors_;
  KernelFacts facts_;
  DriverModule module_;
  DriverFunction function_ = nullptr;
  std::unique_ptr<LaunchGraph> graph_;  // of the last launch's shape, if that was as_graph
};

// Code that a compiler of another version of CUDA has made, and that this driver does not take for it.
bool is_of_wrong_version(int result) {
  constexpr int kInvalidImage = 200, kNoBinaryForGpu = 209, kUnsupportedPtxVersion = 222;
  return result == kInvalidImage || result == kNoBinaryForGpu || result == kUnsupportedPtxVersion;
}

// Host memory is registered once, for all GPUs of the process; ranks in it map each other's. By address: users.
std::mutex registrations_mutex;
std::map<std::byte*, int> registrations;

class CudaGpu final : public Gpu {
 public:
  CudaGpu(Library library, int ordinal, std::shared_ptr<const DiskCache> cache)
      : driver_(std::move(library), ordinal, gate()), cache_(std::move(cache)) {
    read_info();
    std::string why;
    compiler_ = open_nvrtc(&why, driver_major_);
    if (!compiler_) throw Error(Code::kUnavailable, "no CUDA here: " + why);
    adapt_to_compiler();
    driver_.check(driver_.use().stream_create(&stream_, kStreamNonBlocking), "a stream");
  }
  ~CudaGpu() override {
    if (stream_ && !driver_.is_lost()) driver_.use().stream_destroy(stream_);
  }

  const GpuInfo& info() const override { return info_; }

  uint64_t allocate(uint64_t bytes, const std::string& what) override {
    uint64_t address = 0;
    const int result = driver_.use_unless_lost().allocate(&address, bytes ? bytes : 1);
    if (result == kDriverOutOfMemory)
      throw Error(Code::kExhausted, mebibytes(static_cast<int64_t>(bytes)) + " of GPU memory for " + what +
                                        " cannot be had; " + mebibytes(static_cast<int64_t>(free_bytes())) +
                                        " are free");
    driver_.check(result, "memory for " + what);
    return address;
  }
  void release(uint64_t address) override {
    if (!driver_.is_lost()) driver_.use().release(address);
  }
  uint64_t free_bytes() override {
    std::size_t free = 0, total = 0;
    driver_.check(driver_.use_unless_lost().memory_info(&free, &total), "its free memory");
    return free;
  }

  MappedMemory allocate_mapped(uint64_t bytes, const std::string& what) override {
    void* host = nullptr;
    driver_.check(driver_.use_unless_lost().host_allocate(&host, bytes, kHostPortableMapped),
                  "host memory for " + what);
    std::memset(host, 0, bytes);
    try {
      return {static_cast<std::byte*>(host), device_address(host), bytes};
    } catch (...) {
      driver_.use().host_release(host);
      throw;
    }
  }
  void release(const MappedMemory& memory) override {
    if (!driver_.is_lost()) driver_.use().host_release(memory.host);
  }
  uint64_t map(std::byte* host, uint64_t bytes) override {
    const DriverApi& api = driver_.use_unless_lost();
    const std::lock_guard lock(registrations_mutex);
    if (int& users = registrations[host]; users++ == 0) {
      const int result = api.host_register(host, bytes, kHostPortableMapped);
      if (result != kDriverSuccess) registrations.erase(host);
      driver_.check(result, "to map host memory");
    }
    try {
      return device_address(host);
    } catch (...) {
      forget(host);
      throw;
    }
  }
  void unmap(std::byte* host) override {
    const std::lock_guard lock(registrations_mutex);
    forget(host);
  }

  SharedBlock allocate_shared(uint64_t bytes, const std::string& what, BlockHandle& handle) override {
    return cuda::allocate_shared(driver_, bytes, what, handle);
  }
  SharedBlock open_shared(const BlockHandle& handle, uint64_t bytes) override {
    return cuda::open_shared(driver_, handle, bytes);
  }

  NicBlock allocate_for_nic(uint64_t bytes, const std::string& what) override {
    NicBlock block = cuda::allocate_for_nic(driver_, bytes, what);
    if (!nic_ && needs_flush(driver_)) nic_.emplace(driver_.library());
    return block;
  }
  // Without nic_ the GPU itself sees what a NIC has written no later than anything that follows.
  bool flush_nic_writes() noexcept override {
    if (driver_.is_lost()) return false;
    if (!nic_) return true;
    driver_.use();
    return nic_->flush_writes(kFlushCurrentContext, kOrderedForOwner) == kDriverSuccess;
  }

  // The driver returns when the bytes have been staged; the loop's stream does not wait for the rest.
  void upload(uint64_t to, std::span<const std::byte> from) override {
    driver_.check(driver_.use_unless_lost().upload(to, from.data(), from.size()), "a copy to its memory");
    settle();
  }
  void download(std::span<std::byte> to, uint64_t from) override {
    driver_.check(driver_.use_unless_lost().download(to.data(), from, to.size()), "a copy from its memory");
  }
  void fill(uint64_t address, uint64_t bytes, std::byte value) override {
    const auto byte = std::to_integer<unsigned char>(value);
    driver_.check(driver_.use_unless_lost().fill(address, byte, bytes), "to fill memory");
    settle();
  }

  std::unique_ptr<Kernel> load(const KernelSource& source) override {
    for (;;) {
      const CompiledCode code = compile_cached(*compiler_, *cache_, source, info_.arch, driver_version_);
      DriverModule module = nullptr;
      const int result = driver_.use_unless_lost().module_load(&module, code.cubin.data());
      if (is_of_wrong_version(result) && try_next_compiler()) continue;
      driver_.check(result, "the loop that NVRTC " + compiler_->version() + " has compiled");
      return std::make_unique<CudaKernel>(driver_, stream_, info_.processors, code.facts, module,
                                          source.entry);
    }
  }

 private:
  bool try_next_compiler() {
    refused_compilers_.push_back(compiler_->version());
    auto next = open_nvrtc(nullptr, driver_major_, refused_compilers_);
    if (!next) return false;
    compiler_ = std::move(next);
    adapt_to_compiler();
    return true;
  }
  void adapt_to_compiler() {
    info_.versions = "driver " + driver_version_ + ", NVRTC " + compiler_->version();
    const std::string arch = arch_for(major_, minor_, compiler_->architectures());
    if (arch.empty())
      throw Error(Code::kUnsupported, "no CUDA here: " + info_.name + " is a " + info_.arch +
                                          ", which NVRTC " + compiler_->version() +
                                          " does not know; install a newer one, or use --device cpu");
    info_.arch = arch;
  }

  void settle() { driver_.check(driver_.use_unless_lost().stream_wait(nullptr), "a copy"); }

  // One user less; with registrations_mutex.
  void forget(std::byte* host) {
    const auto it = registrations.find(host);
    if (it == registrations.end() || --it->second > 0) return;
    registrations.erase(it);
    if (!driver_.is_lost()) driver_.use().host_unregister(host);
  }
  uint64_t device_address(void* host) {
    uint64_t address = 0;
    driver_.check(driver_.use_unless_lost().host_address(&address, host, 0), "the address of mapped memory");
    return address;
  }

  void read_info() {
    const DriverApi& api = driver_.use();
    char name[128] = {};
    driver_.check(api.device_name(name, sizeof name - 1, driver_.device()), "its name");
    info_.name = name;
    major_ = driver_.attribute(kDeviceMajor), minor_ = driver_.attribute(kDeviceMinor);
    info_.arch = arch_for(major_, minor_, {});
    if (major_ < kOldestMajor || !driver_.attribute(kDeviceCooperative))
      throw Error(Code::kUnsupported, "no CUDA here: " + info_.name + " is a " + info_.arch +
                                          "; sm_80 or newer with cooperative launches is needed");
    info_.processors = driver_.attribute(kDeviceProcessors);
    info_.shared_per_block = driver_.attribute(kDeviceSharedPerBlock);
    refuse_small_shared_memory();
    info_.clock_khz = driver_.attribute(kDeviceClockRate);
    int clock = 0, bits = 0;  // figures for reports: a driver may refuse them; two transfers a clock
    if (api.device_attribute(&clock, kDeviceMemoryClockRate, driver_.device()) == kDriverSuccess &&
        api.device_attribute(&bits, kDeviceMemoryBusWidth, driver_.device()) == kDriverSuccess)
      info_.memory_rate = 2e3 * clock * bits / 8;
    if (int l2 = 0; api.device_attribute(&l2, kDeviceL2, driver_.device()) == kDriverSuccess) info_.l2 = l2;
    std::size_t memory = 0;
    driver_.check(api.device_memory(&memory, driver_.device()), "the size of its memory");
    info_.memory = static_cast<int64_t>(memory);
    int version = 0;
    driver_.check(api.version(&version), "its driver's version");
    driver_major_ = version / 1000;
    driver_version_ = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }

  // All that are new enough have 99 KiB at least; a part of one (MIG, a limit of the system) may have less.
  void refuse_small_shared_memory() const {
    const auto needed = static_cast<int32_t>(shared_layout(kMinStages, kSmallTiles.scratch).total);
    if (info_.shared_per_block >= needed) return;
    throw Error(Code::kUnsupported, "no CUDA here: " + info_.name + " gives a block " +
                                        std::to_string(info_.shared_per_block >> 10) +
                                        " KiB of shared memory, the loop needs " +
                                        std::to_string((needed + 1023) >> 10) + " KiB; use --device cpu");
  }

  Driver driver_;
  std::shared_ptr<const DiskCache> cache_;
  std::unique_ptr<Compiler> compiler_;
  GpuInfo info_;
  std::string driver_version_;                    // of CUDA, as the driver has it
  int driver_major_ = 0, major_ = 0, minor_ = 0;  // of CUDA; the GPU's compute capability
  std::vector<std::string> refused_compilers_;    // versions whose code the driver does not take
  DriverStream stream_ = nullptr;                 // of launches; does not wait for copies
  std::optional<NicApi> nic_;                     // where memory that NICs write needs flushes
};

Library open_driver() {
  // A module that is loaded when its kernel is first launched would do context work under a running loop. The
  // driver reads this once, when it is first initialised.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  const char* variable = std::getenv("ARK_LIBCUDA");
  const std::string name = variable ? variable : "libcuda.so.1";
  Library library({name});
  if (!library.is_open())
    throw Error(Code::kUnavailable, "no CUDA here: " + escaped(name) + " cannot be loaded");
  return library;
}

}  // namespace

std::unique_ptr<Gpu> open_gpu(int ordinal, std::shared_ptr<const DiskCache> cache) {
  if (!cache) cache = std::make_shared<DiskCache>(DiskCache::default_folder(), DiskCache::kDefaultBytes);
  return std::make_unique<CudaGpu>(open_driver(), ordinal, std::move(cache));
}

std::string why_unreachable(int a, int b) {
  const Gate gate;
  const Driver first(open_driver(), a, gate), second(open_driver(), b, gate);
  for (const Driver* driver : {&first, &second}) {
    if (const std::string why = why_not_shared(*driver); !why.empty()) return why;
  }
  int can = 1;
  if (a != b &&
      (SharingApi(first.library()).can_access(&can, first.device(), second.device()) != kDriverSuccess ||
       !can))
    return "the driver lets neither reach the other's memory";
  return {};
}

std::string why_not_by_nic(int gpu) {
  const Gate gate;
  return why_not_by_nic(Driver(open_driver(), gpu, gate));
}

int count_gpus() {
  const Library library = open_driver();
  const DriverApi api(library);
  int count = 0;
  if (api.init(0) != kDriverSuccess || api.device_count(&count) != kDriverSuccess || count == 0)
    throw Error(Code::kUnavailable, "no CUDA here: the driver sees no GPU");
  return count;
}

}  // namespace ark::cuda
