// A Gpu whose memory is host memory and whose kernel is a function of the test, run on a thread.
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "base/error.h"
#include "engine/cuda/gpu.h"

namespace ark::test {

class HostGpu final : public cuda::Gpu {
 public:
  using Body = std::function<void(const cuda::LaunchShape&, std::span<const std::byte> parameter)>;

  // An Error that the body throws is the kernel's death.
  explicit HostGpu(Body body, int32_t resident = 64) : body_(std::move(body)), resident_(resident) {
    info_.name = "host memory";
    info_.arch = "sm_90a";
    info_.processors = resident;
    info_.shared_per_block = 232448;
  }
  ~HostGpu() override {
    if (!blocks_.empty()) std::abort();  // a leak
  }

  const cuda::GpuInfo& info() const override { return info_; }
  uint64_t allocate(uint64_t bytes, const std::string&) override {
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    std::memset(memory, 0xa5, bytes);
    blocks_[reinterpret_cast<uint64_t>(memory)] = bytes;
    return reinterpret_cast<uint64_t>(memory);
  }
  void release(uint64_t address) override {
    if (blocks_.erase(address)) std::free(reinterpret_cast<void*>(address));
  }
  uint64_t free_bytes() override { return uint64_t{1} << 30; }
  cuda::MappedMemory allocate_mapped(uint64_t bytes, const std::string& what) override {
    const uint64_t address = allocate(bytes, what);
    std::memset(reinterpret_cast<void*>(address), 0, bytes);
    return {reinterpret_cast<std::byte*>(address), address, bytes};
  }
  void release(const cuda::MappedMemory& memory) override { release(memory.device); }
  uint64_t map(std::byte* host, uint64_t) override { return reinterpret_cast<uint64_t>(host); }
  void unmap(std::byte*) override {}
  void upload(uint64_t to, std::span<const std::byte> from) override {
    std::memcpy(reinterpret_cast<void*>(to), from.data(), from.size());
  }
  void download(std::span<std::byte> to, uint64_t from) override {
    std::memcpy(to.data(), reinterpret_cast<const void*>(from), to.size());
  }
  void fill(uint64_t address, uint64_t bytes, std::byte value) override {
    std::memset(reinterpret_cast<void*>(address), std::to_integer<int>(value), bytes);
  }
  std::unique_ptr<cuda::Kernel> load(const cuda::KernelSource&) override {
    return std::make_unique<HostKernel>(*this);
  }

 private:
  class HostLaunch final : public cuda::Launch {
   public:
    HostLaunch(const Body& body, const cuda::LaunchShape& shape, std::span<const std::byte> parameter)
        : parameter_(parameter.begin(), parameter.end()), thread_([this, &body, shape] {
            try {
              body(shape, parameter_);
            } catch (const Error&) {
              died_ = true;
            }
            running_ = false;
          }) {}
    bool is_running() override {
      if (!running_ && died_) throw Error(Code::kUnavailable, "the loop kernel died: as the test wants");
      return running_;
    }

   private:
    std::vector<std::byte> parameter_;
    std::atomic<bool> running_{true}, died_{false};
    std::jthread thread_;
  };
  class HostKernel final : public cuda::Kernel {
   public:
    explicit HostKernel(HostGpu& gpu) : gpu_(gpu) {}
    const cuda::KernelFacts& facts() const override { return facts_; }
    int32_t resident_blocks(int32_t, int32_t) override { return gpu_.resident_; }
    std::unique_ptr<cuda::Launch> launch(const cuda::LaunchShape& shape,
                                         std::span<const std::byte> parameter) override {
      cuda::refuse_unless_resident(*this, shape);
      return std::make_unique<HostLaunch>(gpu_.body_, shape, parameter);
    }

   private:
    HostGpu& gpu_;
    cuda::KernelFacts facts_;
  };

  Body body_;
  int32_t resident_;
  cuda::GpuInfo info_;
  std::map<uint64_t, uint64_t> blocks_;
};

}  // namespace ark::test
