#include "dma/verbs/registering.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace ark::dma {
namespace {

// What the device may read and peers may write; goes in the reverse order.
struct Registered {
  std::shared_ptr<const VerbsPort> port;
  std::shared_ptr<void> memory;
  MemoryRegistration registration;
};

}  // namespace

Memory RegisteringTransport::allocate(const std::string& name, uint64_t bytes) {
  if (bytes == 0) return allocate_private(0, name);
  return registered(name, bytes < kHugePage ? allocate_private(bytes, name) : allocate_huge(bytes, name));
}

Memory RegisteringTransport::adopt(const std::string& name, void* base, uint64_t bytes) {
  const Memory memory{{static_cast<std::byte*>(base), bytes}, 0, nullptr};
  return bytes == 0 ? memory : registered(name, memory);
}

const std::shared_ptr<const VerbsPort>& RegisteringTransport::port() {
  if (port_ == nullptr) {
    port_ = open_port(rank_, wish_);
    log_(LogLevel::kDebug,
         "rank " + std::to_string(rank_) + ": transport " + std::string(name_) + " by " + port_->name, {});
  }
  return port_;
}

uint32_t RegisteringTransport::remote_key(const Memory& memory) {
  return memory.key == 0 ? 0 : static_cast<const Registered*>(memory.owner.get())->registration->rkey;
}

// Fewer entries of the device's table of translations; what pages are used otherwise is the kernel's choice.
Memory RegisteringTransport::allocate_huge(uint64_t bytes, const std::string& name) {
  try {
    return allocate_private(bytes, name, PageSize::kHuge);
  } catch (const Error& none) {
    log_(LogLevel::kDebug, std::string(none.what()) + " in huge pages (vm.nr_hugepages); others are taken",
         {});
    return allocate_private(bytes, name);
  }
}

Memory RegisteringTransport::registered(const std::string& name, Memory memory) {
  const auto base = reinterpret_cast<uintptr_t>(memory.region.base);
  const auto address = static_cast<uint32_t>(base % kHugePage);
  const auto made = std::make_shared<Registered>();
  made->port = port();
  made->memory = memory.owner;
  made->registration.reset(ibv_reg_mr_iova(port_->domain.get(), memory.region.base, memory.region.bytes,
                                           address, static_cast<unsigned>(access_)));
  if (made->registration == nullptr) {
    const int error = errno;
    throw Error(Code::kUnavailable, "region " + escaped(name) + ": cannot register " +
                                        std::to_string(memory.region.bytes) + " bytes with " + port_->name +
                                        ": " + std::strerror(error) +
                                        (error == ENOMEM ? "; `ulimit -l` bounds what may be pinned" : ""));
  }
  memory.key = VerbsKey{address, made->registration->lkey}.packed();
  memory.owner = made;
  return memory;
}

Memory RegisteringTransport::registered_by_descriptor(const std::string& name, const NamedMemory& named) {
  Memory memory{named.region, 0, named.owner, true};
  const auto made = std::make_shared<Registered>();
  made->port = port();
  made->memory = named.owner;
  made->registration.reset(ibv_reg_dmabuf_mr(port_->domain.get(), named.offset, named.region.bytes, kHugePage,
                                             named.file.number, named.for_peers ? access_ : 0));
  if (made->registration == nullptr)
    throw Error(Code::kUnsupported, port_->name + " takes no dma-buf (" + name + ", " +
                                        std::to_string(named.region.bytes) +
                                        " bytes): " + std::strerror(errno));
  memory.key = VerbsKey{kHugePage, made->registration->lkey}.packed();
  memory.owner = made;
  return memory;
}

}  // namespace ark::dma
