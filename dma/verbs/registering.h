// Memory that an RDMA device reaches: the part of the set-up that transports `verbs` and `verbs-ud` share.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/log.h"
#include "dma/transport.h"
#include "dma/verbs/device.h"

namespace ark::dma {

class RegisteringTransport : public Transport {
 public:
  // `access`: of peers' devices to the memory, and of our own.
  RegisteringTransport(std::string_view name, int access, int rank, const PortWish& wish,
                       decltype(&log_line) log)
      : rank_(rank), log_(log), name_(name), access_(access), wish_(wish) {}

  std::string_view name() const override { return name_; }
  Memory allocate(const std::string& name, uint64_t bytes) override;
  // Of the host.
  Memory adopt(const std::string& name, void* base, uint64_t bytes) override;
  // Not registered: the pump that receives raises them, and no peer has a key to them.
  Memory allocate_counters(uint64_t bytes) override { return allocate_private(bytes, "counters"); }
  void connected() override {}

 protected:
  const std::shared_ptr<const VerbsPort>& port();
  // Of registered memory; 0 for other.
  static uint32_t remote_key(const Memory& memory);
  // adopt_named() of a GPU's, by a dma-buf that its driver has given: the device asks that driver where it lies.
  Memory registered_by_descriptor(const std::string& name, const NamedMemory& named);

  const int rank_;
  const decltype(&log_line) log_;

 private:
  Memory allocate_huge(uint64_t bytes, const std::string& name);
  Memory registered(const std::string& name, Memory memory);

  const std::string_view name_;
  const int access_;
  const PortWish wish_;
  std::shared_ptr<const VerbsPort> port_;
};

// Memory::key. The device knows memory by addresses that start at its offset in a huge page, so that keys tell nobody
// where it lies in the process, and translations may be of huge pages.
struct VerbsKey {
  uint32_t address = 0;  // of the first byte
  uint32_t key = 0;      // local for own memory, remote for a peer's

  static VerbsKey of(uint64_t packed) {
    return {static_cast<uint32_t>(packed >> 32), static_cast<uint32_t>(packed)};
  }
  uint64_t packed() const { return uint64_t{address} << 32 | key; }
};

}  // namespace ark::dma
