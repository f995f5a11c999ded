#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "dma/plugin.h"
#include "dma/verbs/queues.h"

namespace ark::dma {
namespace {

// What the device may read and peers may write; goes in the reverse order.
struct Registered {
  std::shared_ptr<const VerbsPort> port;
  std::shared_ptr<void> memory;
  MemoryRegistration registration;
};

class VerbsTransport final : public Transport {
 public:
  VerbsTransport(int rank, const PortWish& wish, decltype(&log_line) log)
      : rank_(rank), wish_(wish), log_(log) {}

  std::string_view name() const override { return "verbs"; }

  Memory allocate(const std::string& name, uint64_t bytes) override {
    if (bytes == 0) return allocate_private(0, name);
    return registered(name, bytes < kHugePage ? allocate_private(bytes, name) : allocate_huge(bytes, name));
  }
  // Of the host.
  Memory adopt(const std::string& name, void* base, uint64_t bytes) override {
    const Memory memory{{static_cast<std::byte*>(base), bytes}, 0, nullptr};
    return bytes == 0 ? memory : registered(name, memory);
  }
  // Of a GPU, by a dma-buf that its driver has given: the device asks that driver where the memory lies.
  bool takes_named() const override { return true; }
  Memory adopt_named(const std::string& name, const NamedMemory& named) override {
    Memory memory{named.region, 0, named.owner, true};
    const auto made = std::make_shared<Registered>();
    made->port = port();
    made->memory = named.owner;
    made->registration.reset(
        ibv_reg_dmabuf_mr(port_->domain.get(), named.offset, named.region.bytes, kHugePage, named.file.number,
                          named.for_peers ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0));
    if (made->registration == nullptr)
      throw Error(Code::kUnsupported, port_->name + " takes no dma-buf (" + name + ", " +
                                          std::to_string(named.region.bytes) +
                                          " bytes): " + std::strerror(errno));
    memory.key = VerbsKey{kHugePage, made->registration->lkey}.packed();
    memory.owner = made;
    return memory;
  }
  // Not registered: the pump that receives raises them, and no peer has a key to them.
  Memory allocate_counters(uint64_t bytes) override { return allocate_private(bytes, "counters"); }

  std::string describe(const Memory& memory) override {
    return BlobWriter().number(remote_key(memory).packed()).take();
  }

  Memory attach(int peer, std::string_view description, uint64_t bytes) override {
    BlobReader blob(description, "rank " + std::to_string(peer) + ": its registered memory");
    const auto key = blob.number<uint64_t>();
    blob.end();
    return {{nullptr, bytes}, key, nullptr};
  }
  void connected() override {}

  std::unique_ptr<Wire> open_wire(const WireMap& map, Bootstrap& bootstrap, Deadline deadline) override {
    ARK_CHECK(map.rank == rank_, "a transport of another rank");
    const int ranks = bootstrap.size();
    VerbsParts parts;
    VerbsHello ours;
    bootstrap.together(deadline, [&] {
      parts.port = port();
      parts.told =
          allocate("counts of receives", link_index(ranks, Priority::kDecode) * 2 * sizeof(uint32_t));
      ours = make_queues(parts, map, ranks);
      ours.told_key = remote_key(parts.told).packed();
    });
    const std::vector<std::string> hellos = bootstrap.all_gather(ours.write(), deadline);
    bootstrap.together(deadline, [&] {
      for (int peer = 0; peer < ranks; ++peer)
        if (map.carries_to(peer))
          connect_queues(parts, rank_, ours, peer, VerbsHello::read(hellos[peer], peer, ranks, rank_));
    });
    // All can receive now.
    bootstrap.together(deadline, [&] { prove_queues(parts, deadline); });
    return make_verbs_wire(map, std::move(parts));
  }

 private:
  const std::shared_ptr<const VerbsPort>& port() {
    if (port_ == nullptr) {
      port_ = open_port(rank_, wish_);
      log_(LogLevel::kDebug, "rank " + std::to_string(rank_) + ": transport verbs by " + port_->name, {});
    }
    return port_;
  }

  // Fewer entries of the device's table of translations; what pages are used otherwise is the kernel's choice.
  Memory allocate_huge(uint64_t bytes, const std::string& name) {
    try {
      return allocate_private(bytes, name, PageSize::kHuge);
    } catch (const Error& none) {
      log_(LogLevel::kDebug, std::string(none.what()) + " in huge pages (vm.nr_hugepages); others are taken",
           {});
      return allocate_private(bytes, name);
    }
  }

  static VerbsKey remote_key(const Memory& memory) {
    if (memory.key == 0) return {};  // not registered
    return {VerbsKey::of(memory.key).address,
            static_cast<const Registered*>(memory.owner.get())->registration->rkey};
  }

  Memory registered(const std::string& name, Memory memory) {
    const auto base = reinterpret_cast<uintptr_t>(memory.region.base);
    const auto address = static_cast<uint32_t>(base % kHugePage);
    const auto made = std::make_shared<Registered>();
    made->port = port();
    made->memory = memory.owner;
    made->registration.reset(ibv_reg_mr_iova(port_->domain.get(), memory.region.base, memory.region.bytes,
                                             address, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
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

  const int rank_;
  const PortWish wish_;
  const decltype(&log_line) log_;
  std::shared_ptr<const VerbsPort> port_;
};

std::string trouble(const PortWish& wish) {
  try {
    open_port(0, wish);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::unique_ptr<Transport> make(int rank, const PortWish& wish, decltype(&log_line) log) {
  return std::make_unique<VerbsTransport>(rank, wish, log);
}

}  // namespace

const TransportPlugin* ark_transport_plugin() {
  static const TransportPlugin plugin = {ARK_VERSION, trouble, make};
  return &plugin;
}

}  // namespace ark::dma
