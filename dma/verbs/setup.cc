#include <utility>

#include "base/error.h"
#include "dma/plugin.h"
#include "dma/verbs/datagram_setup.h"
#include "dma/verbs/queues.h"
#include "dma/verbs/registering.h"

namespace ark::dma {
namespace {

class VerbsTransport final : public RegisteringTransport {
 public:
  VerbsTransport(int rank, const PortWish& wish, decltype(&log_line) log)
      : RegisteringTransport("verbs", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, rank, wish, log) {}

  bool takes_named() const override { return true; }
  Memory adopt_named(const std::string& name, const NamedMemory& named) override {
    return registered_by_descriptor(name, named);
  }

  std::string describe(const Memory& memory) override {
    return BlobWriter().number(key_for_peers(memory).packed()).take();
  }

  Memory attach(int peer, std::string_view description, uint64_t bytes) override {
    BlobReader blob(description, "rank " + std::to_string(peer) + ": its registered memory");
    const auto key = blob.number<uint64_t>();
    blob.end();
    return {{nullptr, bytes}, key, nullptr};
  }

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
      ours.told_key = key_for_peers(parts.told).packed();
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
  static VerbsKey key_for_peers(const Memory& memory) {
    if (memory.key == 0) return {};  // not registered
    return {VerbsKey::of(memory.key).address, remote_key(memory)};
  }
};

std::string trouble(const PortWish& wish) {
  try {
    open_port(0, wish);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::unique_ptr<Transport> make(std::string_view transport, int rank, const PortWish& wish,
                                decltype(&log_line) log) {
  if (transport == "verbs-ud") return make_datagram_transport(rank, wish, log);
  return std::make_unique<VerbsTransport>(rank, wish, log);
}

}  // namespace

const TransportPlugin* ark_transport_plugin() {
  static const TransportPlugin plugin = {ARK_VERSION, trouble, make};
  return &plugin;
}

}  // namespace ark::dma
