#include "dma/socket/setup.h"

#include <chrono>
#include <cstddef>
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
constexpr std::size_t kSecret = 32;

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
    const std::string secret = random_bytes(kSecret);
    const std::vector<std::string> doors =
        bootstrap.all_gather(BlobWriter().text(address).text(secret).take(), deadline);
    const int ranks = static_cast<int>(doors.size());
    int higher = 0;
    for (int peer = map.rank + 1; peer < ranks; ++peer) higher += map.carries_to(peer);
    std::vector<Socket> sockets(doors.size());
    Door own(std::move(listener), bootstrap.key() + secret, map.rank, ranks, kWireHelloTime);
    // Rank 0 opens its door at once; each rank that has been let in by all lower ones opens its own.
    for (int peer = 0; peer < map.rank; ++peer)
      if (map.carries_to(peer))
        sockets[peer] = visit(doors[peer], map.rank, peer, ranks, bootstrap.key(), deadline);
    take_in(own, map, higher, sockets, deadline);
    return make_socket_wire(map, std::move(sockets));
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

  static Socket visit(const std::string& door, int rank, int peer, int ranks, const std::string& key,
                      Deadline deadline) {
    const std::string name = "rank " + std::to_string(peer);
    BlobReader blob(door, name + ": its address");
    const std::string address(blob.text());
    const std::string secret(blob.text());
    blob.end();
    Socket socket;
    try {
      socket = Socket::connect(address, deadline);
    } catch (const Error&) {
      throw Error(Code::kUnavailable,
                  "rank " + std::to_string(rank) + ": transport socket cannot reach " + name + " at " +
                      escaped(address) +
                      "; ARK_ADDRESS of its machine names where, firewalls must let it through");
    }
    introduce(socket, FrameKind::kHelloWire, rank, peer, ranks, "", key + secret,
              name + " at " + escaped(address), deadline);
    return socket;
  }

  // The connections of all higher ranks that the wire carries to; others are sent away.
  static void take_in(Door& door, const WireMap& map, int missing, std::vector<Socket>& sockets,
                      Deadline deadline) {
    while (missing > 0) {
      if (deadline.passed())
        throw Error(Code::kUnavailable, "rank " + std::to_string(map.rank) + ": transport socket: " +
                                            std::to_string(missing) + " ranks did not connect in time");
      door.attend([&](const Encounter& guest, Socket& socket) -> std::string {
        const bool fits = static_cast<FrameKind>(guest.kind) == FrameKind::kHelloWire &&
                          guest.guest > static_cast<uint32_t>(map.rank) && guest.guest < sockets.size() &&
                          map.carries_to(static_cast<int>(guest.guest));
        if (!fits || sockets[guest.guest].is_open()) return "no such rank is awaited";
        sockets[guest.guest] = std::move(socket);
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
