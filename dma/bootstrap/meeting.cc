#include "dma/bootstrap/meeting.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <random>

#include "base/error.h"

namespace ark::dma {
namespace {

// A connection that sends nothing is dropped after this time; others are served meanwhile.
constexpr std::chrono::seconds kHelloTime{5};
constexpr size_t kMaxStrangers = 1024;
constexpr uint64_t kMaxVisitor = 32;  // bytes of what tells one process from another

class Host {
 public:
  Host(const Environment& environment, Deadline deadline)
      : environment_(environment), deadline_(deadline), listener_(Socket::listen(environment.address)) {
    connections_.gather.resize(environment.size);
    connections_.watch.resize(environment.size);
  }

  Connections run() {
    while (!is_complete()) {
      if (deadline_.passed()) throw Error(Code::kUnavailable, missing());
      if (const std::string lost = environment_.lost ? environment_.lost() : ""; !lost.empty())
        throw Error(Code::kUnavailable, lost);
      wait_for_any();
      for (Socket next = listener_.accept(); next.is_open(); next = listener_.accept()) {
        if (strangers_.size() < kMaxStrangers)
          strangers_.push_back({std::move(next), Deadline::after(kHelloTime)});
      }
      std::erase_if(strangers_, [this](Stranger& stranger) { return is_settled(stranger); });
    }
    for (int rank = 1; rank < environment_.size; ++rank) {
      for (const Socket* socket : {&connections_.gather[rank], &connections_.watch[rank]}) {
        send_frame(*socket, FrameKind::kWelcome, 0, environment_.size, {}, deadline_);
      }
    }
    return std::move(connections_);
  }

 private:
  struct Stranger {
    Socket socket;
    Deadline hello_until;
  };

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
    return ranks + " did not come to ARK_BOOTSTRAP " + escaped(environment_.address) + " in time";
  }

  void wait_for_any() {
    std::vector<pollfd> waiting = {{listener_.descriptor(), POLLIN, 0}};
    for (const Stranger& stranger : strangers_) waiting.push_back({stranger.socket.descriptor(), POLLIN, 0});
    poll(waiting.data(), waiting.size(), 50);
  }

  // True: the stranger is seated or sent away.
  bool is_settled(Stranger& stranger) {
    pollfd one = {stranger.socket.descriptor(), POLLIN, 0};
    if (poll(&one, 1, 0) <= 0) return stranger.hello_until.passed();
    Frame hello;
    // A hello is a few bytes in one segment; a sender of less than that is not one of ours.
    const Received got =
        receive_frame(stranger.socket, hello, kMaxVisitor, Deadline::after(std::chrono::milliseconds(100)));
    if (got != Received::kFrame) return true;
    const std::string reason = seat(stranger.socket, hello);
    if (!reason.empty()) {
      send_frame(stranger.socket, FrameKind::kRefused, 0, environment_.size, reason,
                 Deadline::after(std::chrono::milliseconds(100)));
    }
    return true;
  }

  // Returns why the stranger is refused; empty if it is seated.
  std::string seat(Socket& socket, const Frame& frame) {
    const FrameHeader& hello = frame.header;
    const auto size = static_cast<uint32_t>(environment_.size);
    if (hello.ranks != size) {
      return "rank 0 has ARK_WORLD_SIZE=" + std::to_string(size) + ", this rank has " +
             std::to_string(hello.ranks);
    }
    const bool is_gather = hello.kind == FrameKind::kHelloGather;
    if (hello.rank == 0 || hello.rank >= size || (!is_gather && hello.kind != FrameKind::kHelloWatch)) {
      return "no such rank: " + std::to_string(hello.rank);
    }
    Socket& place = (is_gather ? connections_.gather : connections_.watch)[hello.rank];
    // Both connections of a rank are of one process.
    std::string& visitor = visitors_[hello.rank];
    if (visitor.empty()) visitor = frame.payload;
    if (place.is_open() || visitor != frame.payload)
      return "rank " + std::to_string(hello.rank) + " is here already; each needs its own ARK_RANK";
    place = std::move(socket);
    return {};
  }

  const Environment& environment_;
  const Deadline deadline_;
  const Socket listener_;
  std::vector<Stranger> strangers_;
  Connections connections_;
  std::map<uint32_t, std::string> visitors_;  // by rank: who has come
};

Socket visit(const Environment& environment, FrameKind hello, const std::string& visitor, Deadline deadline) {
  Socket socket = Socket::connect(environment.address, deadline);
  send_frame(socket, hello, environment.rank, environment.size, visitor, deadline);
  return socket;
}

void expect_welcome(const Socket& socket, const Environment& environment, Deadline deadline) {
  Frame answer;
  const Received got = receive_frame(socket, answer, kMaxReason, deadline);
  const std::string who = "rank " + std::to_string(environment.rank);
  if (got == Received::kFrame && answer.header.kind == FrameKind::kWelcome) return;
  if (got == Received::kFrame && answer.header.kind == FrameKind::kRefused) {
    throw Error(Code::kUsage, who + " is refused by rank 0: " + escaped(answer.payload));
  }
  if (got == Received::kLate) {
    throw Error(Code::kUnavailable,
                who + ": the group is not complete in time; see rank 0 for who is missing");
  }
  throw Error(Code::kUnavailable, who + ": rank 0 closed the meeting at ARK_BOOTSTRAP " +
                                      escaped(environment.address) + " before the group was complete");
}

}  // namespace

Connections meet(const Environment& environment, Deadline deadline) {
  if (environment.rank == 0) {
    Connections connections = environment.size == 1
                                  ? Connections{std::vector<Socket>(1), std::vector<Socket>(1)}
                                  : Host(environment, deadline).run();
    if (environment.size > 1) remove_socket_file(environment.address);
    return connections;
  }
  Connections connections{std::vector<Socket>(1), std::vector<Socket>(1)};
  const std::string visitor = std::to_string(std::random_device()()) + "." + std::to_string(getpid());
  connections.gather[0] = visit(environment, FrameKind::kHelloGather, visitor, deadline);
  connections.watch[0] = visit(environment, FrameKind::kHelloWatch, visitor, deadline);
  expect_welcome(connections.gather[0], environment, deadline);
  expect_welcome(connections.watch[0], environment, deadline);
  return connections;
}

}  // namespace ark::dma
