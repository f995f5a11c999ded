#include "dma/socket/setup.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "dma/blob.h"
#include "dma/bootstrap/door.h"
#include "dma/bootstrap/meeting.h"
#include "dma/socket/wire.h"

namespace ark::dma {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr std::chrono::seconds kWireHelloTime{5};  // for all that a connection says before it counts
constexpr int64_t kAgainNs = 10'000'000;
constexpr std::string_view kVisitors[kPriorities] = {"decode", "bulk"};  // a connection for each
// What a receiver grants to bulk: that much may be under way to it, and fill what is between.
constexpr int kBulkWindow = 256 << 10;
constexpr std::size_t kSecretBytes = 32;

class SocketTransport final : public NumberedMemoryTransport {
 public:
  explicit SocketTransport(std::string address) : address_(std::move(address)) {}

  std::string_view name() const override { return "socket"; }

  std::unique_ptr<Wire> open_wire(const WireMap& map, Bootstrap& bootstrap, Deadline deadline) override {
    const std::string host = !address_.empty()              ? address_
                             : !bootstrap.address().empty() ? bootstrap.address()
                                                            : kLoopback;
    Socket listener = listen(host, map.rank);
    const std::string address = address_of(host, listener.local_port());
    if (bootstrap.key().empty() && !is_local(address))
      throw Error(Code::kUsage, "ARK_ADDRESS " + escaped(host) + kNeedsKey);
    // Whoever connects must know it, and the key; ranks learn each other's through the bootstrap.
    const std::string secret = random_bytes(kSecretBytes);
    const std::vector<std::string> doors =
        bootstrap.all_gather(BlobWriter().text(address).text(secret).take(), deadline);
    const int ranks = static_cast<int>(doors.size());
    int higher = 0;
    for (int peer = map.rank + 1; peer < ranks; ++peer) higher += map.carries_to(peer);
    std::vector<Socket> sockets[kPriorities];
    for (std::vector<Socket>& of_all : sockets) of_all.resize(doors.size());
    Door own(std::move(listener), bootstrap.key() + secret, map.rank, ranks, kWireHelloTime);
    // Rank 0 opens its door at once; each rank that has been let in by all lower ones opens its own.
    for (int peer = 0; peer < map.rank; ++peer)
      for (int priority = 0; priority < kPriorities && map.carries_to(peer); ++priority)
        sockets[priority][peer] =
            visit(doors[peer], map.rank, peer, ranks, kVisitors[priority], bootstrap, deadline);
    take_in(own, map, higher * kPriorities, sockets, bootstrap, deadline);
    for (const Socket& bulk : sockets[kPriorities - 1])
      if (bulk.is_open())
        setsockopt(bulk.descriptor(), SOL_SOCKET, SO_RCVBUF, &kBulkWindow, sizeof kBulkWindow);
    return make_socket_wire(map, std::move(sockets[0]), std::move(sockets[1]));
  }

 private:
  static Socket listen(const std::string& host, int rank) {
    try {
      return Socket::listen(address_of(host, 0));
    } catch (const Error&) {
      throw Error(Code::kOs, "rank " + std::to_string(rank) + ": transport socket cannot listen at " +
                                 escaped(host) + "; ARK_ADDRESS must be an address of this machine");
    }
  }

  static Socket visit(const std::string& door, int rank, int peer, int ranks, std::string_view visitor,
                      Bootstrap& bootstrap, Deadline deadline) {
    const std::string name = "rank " + std::to_string(peer);
    BlobReader blob(door, name + ": its address");
    const std::string address(blob.text());
    const std::string secret(blob.text());
    blob.end();
    Socket socket;
    while (!socket.is_open()) {
      bootstrap.check_alive();
      try {
        socket = Socket::connect_once(address, deadline);
        break;
      } catch (const Error&) {  // it listens already, but many may come at once
        if (!deadline.passed()) {
          detail::blind_sleep(kAgainNs);
          continue;
        }
      }
      throw Error(Code::kUnavailable,
                  "rank " + std::to_string(rank) + ": transport socket cannot reach " + name + " at " +
                      escaped(address) +
                      "; ARK_ADDRESS of its machine names where, firewalls must let it through");
    }
    introduce(socket, FrameKind::kHelloWire, rank, peer, ranks, std::string(visitor),
              bootstrap.key() + secret, name + " at " + escaped(address), deadline);
    return socket;
  }

  // The connections of all higher ranks that the wire carries to; others are sent away.
  static void take_in(Door& door, const WireMap& map, int missing, std::span<std::vector<Socket>> sockets,
                      Bootstrap& bootstrap, Deadline deadline) {
    while (missing > 0) {
      bootstrap.check_alive();
      if (deadline.passed())
        throw Error(Code::kUnavailable, "rank " + std::to_string(map.rank) +
                                            ": transport socket: " + std::to_string(missing) +
                                            " connections of other ranks did not come in time");
      door.attend([&](const Encounter& guest, Socket& socket) -> std::string {
        const bool fits = static_cast<FrameKind>(guest.kind) == FrameKind::kHelloWire &&
                          guest.guest > static_cast<uint32_t>(map.rank) && guest.guest < sockets[0].size() &&
                          map.carries_to(static_cast<int>(guest.guest));
        const auto* visitor = std::ranges::find(kVisitors, guest.visitor);
        if (!fits || visitor == std::end(kVisitors)) return "no such rank is awaited";
        Socket& place = sockets[visitor - kVisitors][guest.guest];
        if (place.is_open()) return "no such rank is awaited";
        place = std::move(socket);
        --missing;
        return "";
      });
    }
  }

  const std::string address_;
};

}  // namespace

std::unique_ptr<Transport> make_socket_transport(const std::string& address) {
  return std::make_unique<SocketTransport>(address);
}

}  // namespace ark::dma
