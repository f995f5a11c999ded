#include "dma/socket/setup.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <random>
#include <utility>

#include "base/error.h"
#include "dma/blob.h"
#include "dma/bootstrap/socket.h"
#include "dma/socket/wire.h"

namespace ark::dma {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
// A stranger at the door may keep the others waiting so long.
constexpr std::chrono::milliseconds kHelloTime{500};

uint16_t port_of(const Socket& listener) {
  sockaddr_storage name = {};
  socklen_t length = sizeof name;
  getsockname(listener.descriptor(), reinterpret_cast<sockaddr*>(&name), &length);
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(name).sin6_port
                                          : reinterpret_cast<const sockaddr_in&>(name).sin_port);
}

// Whoever connects must know it; ranks learn each other's through the bootstrap.
std::string random_secret() {
  std::random_device random;
  std::string secret;
  for (int i = 0; i < 8; ++i) secret += std::to_string(random()) + ".";
  return secret;
}

class SocketTransport : public Transport {
 public:
  explicit SocketTransport(std::string address) : address_(std::move(address)) {}

  std::string_view name() const override { return "socket"; }
  Memory allocate(const std::string& name, uint64_t bytes) override { return allocate_private(bytes, name); }
  Memory adopt(const std::string&, void* base, uint64_t bytes) override {
    return {{static_cast<std::byte*>(base), bytes}, 0, nullptr};
  }
  // A peer names our memory by region and offset alone.
  std::string describe(const Memory&) override { return {}; }
  Memory attach(int, std::string_view, uint64_t bytes) override { return {{nullptr, bytes}, 0, nullptr}; }
  void connected() override {}

  std::unique_ptr<Wire> open_wire(const WireMap& map, Bootstrap& bootstrap, Deadline deadline) override {
    const std::string host = address_.empty() ? kLoopback : address_;
    const Socket listener = listen(host, map.rank);
    const std::string secret = random_secret();
    const std::string door = BlobWriter().text(at(host, port_of(listener))).text(secret).take();
    const std::vector<std::string> doors = bootstrap.all_gather(door, deadline);
    std::vector<Socket> sockets(doors.size());
    for (int peer = 0; peer < map.rank; ++peer)
      sockets[peer] = visit(doors[peer], map.rank, peer, static_cast<int>(doors.size()), deadline);
    take_in(listener, secret, map.rank, sockets, deadline);
    return make_socket_wire(map, std::move(sockets));
  }

 private:
  static std::string at(const std::string& host, uint16_t port) {
    const bool is_v6 = host.find(':') != std::string::npos;
    return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
  }

  static Socket listen(const std::string& host, int rank) {
    try {
      return Socket::listen(at(host, 0));
    } catch (const Error&) {
      throw Error(Code::kOs, "rank " + std::to_string(rank) + ": transport socket cannot listen at " +
                                 escaped(host) + "; ARK_ADDRESS must be an address of this machine");
    }
  }

  static Socket visit(const std::string& door, int rank, int peer, int ranks, Deadline deadline) {
    BlobReader blob(door, "rank " + std::to_string(peer) + ": its address");
    const std::string address(blob.text());
    const std::string_view secret = blob.text();
    blob.end();
    try {
      Socket socket = Socket::connect(address, deadline);
      if (send_frame(socket, FrameKind::kHelloWire, rank, ranks, secret, deadline)) return socket;
    } catch (const Error&) {
    }
    throw Error(Code::kUnavailable, "rank " + std::to_string(rank) + ": transport socket cannot reach rank " +
                                        std::to_string(peer) + " at " + escaped(address) +
                                        "; ARK_ADDRESS of its machine names where");
  }

  // The connections of all higher ranks; others are sent away.
  static void take_in(const Socket& listener, const std::string& secret, int rank,
                      std::vector<Socket>& sockets, Deadline deadline) {
    for (int missing = static_cast<int>(sockets.size()) - rank - 1; missing > 0;) {
      if (deadline.passed())
        throw Error(Code::kUnavailable, "rank " + std::to_string(rank) + ": transport socket: " +
                                            std::to_string(missing) + " ranks did not connect in time");
      pollfd door = {listener.descriptor(), POLLIN, 0};
      poll(&door, 1, 50);
      Socket next = listener.accept();
      if (!next.is_open()) continue;
      Frame hello;
      if (receive_frame(next, hello, secret.size(), Deadline::after(kHelloTime)) != Received::kFrame)
        continue;
      const uint32_t peer = hello.header.rank;
      const bool is_ours = hello.header.kind == FrameKind::kHelloWire && hello.payload == secret;
      if (!is_ours || peer <= static_cast<uint32_t>(rank) || peer >= sockets.size() ||
          sockets[peer].is_open())
        continue;
      sockets[peer] = std::move(next);
      --missing;
    }
  }

  const std::string address_;
};

}  // namespace

std::unique_ptr<Transport> make_socket_transport(const std::string& address) {
  return std::make_unique<SocketTransport>(address);
}

}  // namespace ark::dma
