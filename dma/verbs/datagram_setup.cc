#include "dma/verbs/datagram_setup.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "dma/verbs/datagram_wire.h"
#include "dma/verbs/queues.h"
#include "dma/verbs/registering.h"

namespace ark::dma {
namespace {

using Hello = DatagramHello;

// Sends that a device may hold: of bulk few, as what it has taken goes before decode that comes later.
constexpr std::array<uint32_t, kPriorities> kSends = {128, 16};
constexpr uint32_t kMostReceives = 8192;  // of a queue pair: 34 MB
// Greetings, of 10 ms and up: 2 s in all.
constexpr int kGreetings = 15;

[[noreturn]] void refuse(const std::string& what, const char* why) {
  throw Error(Code::kUnavailable, "transport verbs-ud: " + what + ": " + why);
}

// Of what a peer may have under way, each with an acknowledgement of ours on its way back, and some to spare.
uint32_t receives_of(uint32_t window) { return 2 * window + 4; }

uint32_t bytes_of(uint8_t mtu) { return 128u << mtu; }

void start(const VerbsPort& port, DatagramQueue& queue, uint32_t key, uint32_t& most_inline) {
  queue.sent.reset(ibv_create_cq(port.context.get(), static_cast<int>(queue.depth), nullptr, nullptr, 0));
  queue.received.reset(
      ibv_create_cq(port.context.get(), static_cast<int>(queue.receives), nullptr, nullptr, 0));
  if (!queue.sent || !queue.received) refuse(port.name + " makes no completion queue", std::strerror(errno));
  int error = 0;
  for (const uint32_t wanted : {220u, 96u, 0u}) {  // devices do not tell how much they take inline
    ibv_qp_init_attr attributes = {};
    attributes.send_cq = queue.sent.get();
    attributes.recv_cq = queue.received.get();
    attributes.qp_type = IBV_QPT_UD;
    attributes.cap = {queue.depth, queue.receives, 2, 1, wanted};
    queue.pair.reset(ibv_create_qp(port.domain.get(), &attributes));
    error = errno;
    if (queue.pair == nullptr) continue;
    most_inline = std::min(most_inline, attributes.cap.max_inline_data);
    ibv_qp_attr state = {};
    state.qp_state = IBV_QPS_INIT;
    state.port_num = port.number;
    state.qkey = key;
    error =
        ibv_modify_qp(queue.pair.get(), &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
    state.qp_state = IBV_QPS_RTR;
    if (error == 0) error = ibv_modify_qp(queue.pair.get(), &state, IBV_QP_STATE);
    state.qp_state = IBV_QPS_RTS;
    if (error == 0) error = ibv_modify_qp(queue.pair.get(), &state, IBV_QP_STATE | IBV_QP_SQ_PSN);
    if (error == 0) return;
  }
  refuse(port.name + " makes no queue pair", std::strerror(error));
}

class DatagramTransport final : public RegisteringTransport {
 public:
  DatagramTransport(int rank, const PortWish& wish, decltype(&log_line) log)
      : RegisteringTransport("verbs-ud", IBV_ACCESS_LOCAL_WRITE, rank, wish, log) {}

  // Peers name memory by region and offset: the receiver places what comes.
  std::string describe(const Memory&) override { return {}; }
  Memory attach(int, std::string_view, uint64_t bytes) override { return {{nullptr, bytes}, 0, nullptr}; }

  std::unique_ptr<Wire> open_wire(const WireMap& map, Bootstrap& bootstrap, Deadline deadline) override {
    ARK_CHECK(map.rank == rank_, "a transport of another rank");
    const int ranks = bootstrap.size();
    DatagramParts parts;
    Hello ours;
    bootstrap.together(deadline, [&] { ours = make_queues(parts, map, ranks); });
    const std::vector<std::string> hellos = bootstrap.all_gather(ours.write(), deadline);
    bootstrap.together(deadline, [&] {
      uint8_t mtu = ours.at.mtu;
      parts.peers.resize(static_cast<size_t>(ranks));
      for (int peer = 0; peer < ranks; ++peer) {
        if (!map.carries_to(peer)) continue;
        const Hello theirs = Hello::read(hellos[peer], peer, ranks);
        mtu = std::min(mtu, theirs.at.mtu);
        connect(parts, peer, theirs, ours);
      }
      parts.payload = bytes_of(mtu) - static_cast<uint32_t>(sizeof(Datagram));
    });
    const auto log = [log = log_, rank = rank_](const std::string& counted) {
      log(LogLevel::kDebug, "rank " + std::to_string(rank) + ": transport verbs-ud: " + counted, {});
    };
    auto wire = make_datagram_wire(map, std::move(parts), log);
    greet(*wire, bootstrap, deadline);
    return wire;
  }

 private:
  Hello make_queues(DatagramParts& parts, const WireMap& map, int ranks) {
    parts.port = port();
    const VerbsPort& port = *parts.port;
    uint32_t peers = 0;
    for (int peer = 0; peer < ranks; ++peer) peers += map.carries_to(peer);
    const uint32_t most = std::min({kMostReceives, static_cast<uint32_t>(port.limits.max_qp_wr),
                                    static_cast<uint32_t>(port.limits.max_cqe)}) /
                          std::max(peers, 1u);
    if (most < receives_of(Hello::kLeastWindow))
      refuse(port.name, ("has too short queues for " + std::to_string(ranks) + " ranks").c_str());

    Hello hello;
    std::copy(std::begin(port.gid.raw), std::end(port.gid.raw), hello.at.gid.begin());
    hello.at.lid = port.port.lid;
    hello.at.mtu = static_cast<uint8_t>(port.port.active_mtu);
    hello.window = std::min(Hello::kMostWindow, (most - receives_of(0)) / 2);
    hello.key = static_cast<uint32_t>(random_word()) >> 1;
    for (int rank = 0; rank < ranks; ++rank) hello.secrets.push_back(random_word());
    parts.stride = (kRouteHead + bytes_of(hello.at.mtu) + 63) / 64 * 64;
    parts.most_inline = UINT32_MAX;
    for (size_t i = 0; i < parts.queues.size(); ++i) {
      DatagramQueue& queue = parts.queues[i];
      queue.depth = std::min({kSends[i], static_cast<uint32_t>(port.limits.max_qp_wr),
                              static_cast<uint32_t>(port.limits.max_cqe)});
      queue.receives = std::max(peers, 1u) * receives_of(hello.window);
      queue.heads = allocate("heads of datagrams", queue.depth * sizeof(Datagram));
      queue.arrivals = allocate("datagrams that come", uint64_t{queue.receives} * parts.stride);
      start(port, queue, hello.key, parts.most_inline);
      hello.queues[i] = queue.pair->qp_num;
    }
    return hello;
  }

  void connect(DatagramParts& parts, int peer, const Hello& theirs, const Hello& ours) const {
    DatagramPeer& made = parts.peers[peer];
    std::copy(theirs.at.gid.begin(), theirs.at.gid.end(), made.gid.raw);
    made.queues = theirs.queues;
    made.key = theirs.key;
    made.window = theirs.window;
    made.our_secret = theirs.secrets[rank_];
    made.their_secret = ours.secrets[peer];
    ibv_ah_attr way = way_to(*parts.port, theirs.at);
    made.way.reset(ibv_create_ah(parts.port->domain.get(), &way));
    if (made.way == nullptr) refuse("no way to " + path(parts, peer), std::strerror(errno));
  }

  // In rounds, as who has heard all does not know whether it has been heard: nobody goes on before all have.
  static void greet(DatagramWire& wire, Bootstrap& bootstrap, Deadline deadline) {
    std::vector<int> silent;
    for (int round = 0; round < kGreetings; ++round) {
      silent = wire.greet(std::chrono::milliseconds(10 << std::min(round, 4)));
      const std::vector<std::string> all = bootstrap.all_gather(silent.empty() ? "" : "silence", deadline);
      if (std::ranges::all_of(all, [](const std::string& each) { return each.empty(); })) return;
    }
    bootstrap.together(deadline, [&] {
      if (!silent.empty())
        refuse("nothing comes by way of " + wire.path_to(silent[0]),
               "no greeting in time (--verbs-device and --verbs-gid choose the way)");
    });
  }
};

}  // namespace

std::string path(const DatagramParts& parts, int peer) {
  return "rank " + std::to_string(peer) + " at " + text(parts.peers[peer].gid) + " from " + parts.port->name;
}

std::unique_ptr<Transport> make_datagram_transport(int rank, const PortWish& wish, decltype(&log_line) log) {
  return std::make_unique<DatagramTransport>(rank, wish, log);
}

}  // namespace ark::dma
