#include "dma/bootstrap/meeting.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "dma/bootstrap/door.h"

namespace ark::dma {
namespace {

// For all that a connection says before it has a place.
constexpr std::chrono::seconds kHelloTime{5};
constexpr std::chrono::seconds kLineEvery{10};  // between two lines about who is awaited

bool is_here(const std::string& host) { return is_local(address_of(host, 0)); }

Socket listener_of(const Environment& environment) {
  if (environment.listener) return std::move(*environment.listener);
  return environment.everywhere != 0 ? Socket::listen_everywhere(environment.everywhere)
                                     : Socket::listen(environment.address);
}

// Who waits for the others says nothing: what can be read is the end.
bool has_gone(const Socket& socket) {
  char byte = 0;
  if (!socket.is_open()) return false;
  const ssize_t got = recv(socket.descriptor(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

class Host {
 public:
  Host(const Environment& environment, Deadline deadline)
      : environment_(environment),
        deadline_(deadline),
        door_(listener_of(environment), environment.key, 0, environment.size, kHelloTime) {
    connections_.gather.resize(environment.size);
    connections_.watch.resize(environment.size);
  }

  Connections run() {
    Deadline quiet = Deadline::after(kLineEvery);
    while (!is_complete()) {
      if (deadline_.passed())
        throw Error(Code::kUnavailable, missing() + " did not come to the meeting place " +
                                            escaped(environment_.address) + " in time");
      if (const std::string lost = environment_.lost ? environment_.lost() : ""; !lost.empty())
        throw Error(Code::kUnavailable, lost);
      if (quiet.passed()) {
        log_line(LogLevel::kInfo, "waiting for " + missing() + " at " + escaped(environment_.address));
        quiet = Deadline::after(kLineEvery);
      }
      for (int rank = 1; rank < environment_.size; ++rank) give_up_seat_of_dead(static_cast<uint32_t>(rank));
      door_.attend([this](const Encounter& guest, Socket& socket) { return seat(guest, socket); });
    }
    welcome();
    return std::move(connections_);
  }

 private:
  bool is_complete() const {
    for (int rank = 1; rank < environment_.size; ++rank) {
      if (!connections_.gather[rank].is_open() || !connections_.watch[rank].is_open()) return false;
    }
    return true;
  }

  std::string missing() const {
    std::string ranks;
    for (int rank = 1; rank < environment_.size; ++rank) {
      if (!connections_.gather[rank].is_open() || !connections_.watch[rank].is_open()) {
        ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(rank);
      }
    }
    return ranks;
  }

  // Who has died while it waited comes again as another process.
  void give_up_seat_of_dead(uint32_t rank) {
    Socket &gather = connections_.gather[rank], &watch = connections_.watch[rank];
    if (!has_gone(gather) && !has_gone(watch)) return;
    log_line(LogLevel::kInfo, "rank " + std::to_string(rank) + " has gone before all were here");
    gather = Socket();
    watch = Socket();
    visitors_.erase(rank);
  }

  // Tells each rank by which address it was seen. Who came by loopback shares rank 0's machine, so its address, too:
  // that by which ranks of other machines came.
  void welcome() {
    for (int rank = 1; rank < environment_.size; ++rank) {
      const std::string host = connections_.gather[rank].local_host();
      if (connections_.address.empty() || is_here(connections_.address)) connections_.address = host;
    }
    for (int rank = 1; rank < environment_.size; ++rank) {
      std::string host = connections_.gather[rank].peer_host();
      if (!host.empty() && is_here(host)) host = connections_.address;
      for (const Socket* socket : {&connections_.gather[rank], &connections_.watch[rank]})
        send_frame(*socket, FrameKind::kWelcome, 0, environment_.size, host, deadline_);
    }
  }

  // Returns why the guest is refused; empty if it is seated.
  std::string seat(const Encounter& guest, Socket& socket) {
    const auto size = static_cast<uint32_t>(environment_.size);
    if (guest.ranks != size) {
      return "rank 0 has ARK_WORLD_SIZE=" + std::to_string(size) + ", this rank has " +
             std::to_string(guest.ranks);
    }
    const auto kind = static_cast<FrameKind>(guest.kind);
    if (guest.guest == 0 || guest.guest >= size || kind == FrameKind::kHelloWire ||
        kind == FrameKind::kHelloPages)
      return "no such rank: " + std::to_string(guest.guest);
    // It may have died, and this one have come, since the last look at all.
    give_up_seat_of_dead(guest.guest);
    Socket& place = (kind == FrameKind::kHelloGather ? connections_.gather : connections_.watch)[guest.guest];
    // Both connections of a rank are of one process.
    std::string& visitor = visitors_[guest.guest];
    if (visitor.empty()) visitor = guest.visitor;
    if (place.is_open() || visitor != guest.visitor) {
      // Of two connections of one that has died the later may be looked at behind the first one of who came in its
      // place.
      if (has_gone(socket)) return "it has gone";
      return "rank " + std::to_string(guest.guest) + " is here already; each needs its own ARK_RANK";
    }
    place = std::move(socket);
    return {};
  }

  const Environment& environment_;
  const Deadline deadline_;
  Door door_;
  Connections connections_;
  std::map<uint32_t, std::string> visitors_;  // by rank: who has come
};

std::string place_of(const Environment& environment) { return "rank 0 at " + escaped(environment.address); }

Socket visit(const Environment& environment, FrameKind hello, const std::string& visitor, Deadline deadline) {
  Socket socket = Socket::connect(environment.address, deadline);
  introduce(socket, hello, environment.rank, 0, environment.size, visitor, environment.key,
            place_of(environment), deadline);
  return socket;
}

// Returns the address by which rank 0 has seen this one.
std::string expect_welcome(const Socket& socket, const Environment& environment, Deadline deadline) {
  Frame answer;
  const Received got = receive_frame(socket, answer, kMaxReason, deadline);
  const std::string who = "rank " + std::to_string(environment.rank);
  if (got == Received::kFrame && answer.header.kind == FrameKind::kWelcome) return answer.payload;
  if (got == Received::kFrame && answer.header.kind == FrameKind::kRefused) {
    throw Error(Code::kUsage,
                who + " is refused by " + place_of(environment) + ": " + escaped(answer.payload, kMaxReason));
  }
  if (got == Received::kLate) {
    throw Error(Code::kUnavailable,
                who + ": the group is not complete in time; see rank 0 for who is missing");
  }
  throw Error(Code::kUnavailable,
              who + ": " + place_of(environment) +
                  (got == Received::kDamaged ? kDamagedOnItsWay
                                             : " closed the meeting before the group was complete"));
}

}  // namespace

Connections meet(const Environment& environment, Deadline deadline) {
  Connections connections{std::vector<Socket>(1), std::vector<Socket>(1), ""};
  if (environment.size == 1) return connections;
  if (environment.key.empty() && !is_local(environment.address))
    throw Error(Code::kUsage, "the meeting place " + escaped(environment.address) + kNeedsKey);
  if (environment.rank == 0) {
    connections = Host(environment, deadline).run();
    remove_socket_file(environment.address);
    return connections;
  }
  const std::string visitor = std::to_string(random_word()) + "." + std::to_string(getpid());
  connections.gather[0] = visit(environment, FrameKind::kHelloGather, visitor, deadline);
  connections.watch[0] = visit(environment, FrameKind::kHelloWatch, visitor, deadline);
  connections.address = expect_welcome(connections.gather[0], environment, deadline);
  expect_welcome(connections.watch[0], environment, deadline);
  return connections;
}

}  // namespace ark::dma
