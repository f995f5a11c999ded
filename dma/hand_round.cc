#include "dma/hand_round.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/random.h"
#include "base/sha256.h"
#include "dma/blob.h"
#include "dma/bootstrap/key.h"
#include "dma/transports.h"

namespace ark::dma {
namespace {

constexpr std::size_t kSecret = 16;     // bytes that a guest must show
constexpr std::size_t kMostBytes = 64;  // of a message
constexpr int kPollPause = 50;          // ms

std::string os_error() { return std::strerror(errno); }

// What a rank tells the others of itself.
struct Peer {
  std::string place;  // ranks that can connect have equal ones
  std::string name;   // of its socket; empty: it has nothing to hand, because of
  std::string why_not;
  std::string secret;
};

std::string place_here() {
  const Place here = Place::here();
  return here.machine + "/" + std::to_string(here.network_namespace) + "/" + std::to_string(here.user);
}

Peer peer_of(const std::string& bytes, int rank) {
  BlobReader blob(bytes, "rank " + std::to_string(rank) + ": where it hands its descriptor");
  Peer peer;
  peer.place = blob.text();
  peer.name = blob.text();
  peer.why_not = blob.text();
  peer.secret = blob.text();
  blob.end();
  return peer;
}

struct AbstractAddress {
  sockaddr_un name = {};
  socklen_t length = 0;
};

// Null where it does not fit.
std::optional<AbstractAddress> abstract_address(std::string_view name) {
  AbstractAddress address;
  if (name.size() + 1 > sizeof address.name.sun_path) return std::nullopt;
  address.name.sun_family = AF_UNIX;
  std::memcpy(address.name.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Descriptor packet_socket() {
  return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool is_same_user(const Descriptor& socket) {
  ucred peer = {};
  socklen_t length = sizeof peer;
  return getsockopt(socket.number, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == getuid();
}

// A byte, and room for a descriptor beside it.
struct Packet {
  Packet() = default;
  Packet(const Packet&) = delete;
  Packet& operator=(const Packet&) = delete;

  char byte = 1;
  iovec bytes = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {.msg_name = nullptr,
                    .msg_namelen = 0,
                    .msg_iov = &bytes,
                    .msg_iovlen = 1,
                    .msg_control = control,
                    .msg_controllen = sizeof control,
                    .msg_flags = 0};
};

void send_descriptor(const Descriptor& to, int descriptor) {
  Packet packet;
  cmsghdr* head = CMSG_FIRSTHDR(&packet.message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
  // The queue of a new connection has room for it; who has gone meanwhile needs it no more.
  sendmsg(to.number, &packet.message, MSG_NOSIGNAL);
}

// False: nothing is there yet.
bool receive_descriptor(const Descriptor& from, Handed& handed) {
  Packet packet;
  const ssize_t got = recvmsg(from.number, &packet.message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  const cmsghdr* head = got > 0 ? CMSG_FIRSTHDR(&packet.message) : nullptr;
  if (head != nullptr && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
      head->cmsg_len == CMSG_LEN(sizeof(int))) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(head), sizeof number);
    handed.descriptor = Descriptor(number);
  } else {
    handed.why_not = got > 0 ? "it sends no descriptor" : "it closes the connection";
  }
  return true;
}

// Of one rank, host of the others' visits and guest of the others.
class Round {
 public:
  Round(int rank, int size, int own) : rank_(rank), own_(own), handed_(static_cast<std::size_t>(size)) {}

  // Ready to be visited.
  std::string open() {
    Peer peer{.place = place_here()};
    if (own_ < 0) {
      peer.why_not = "it has none";
    } else if (const std::string why = listen_at(peer); !why.empty()) {
      peer.name.clear();
      peer.why_not = why;
    }
    return BlobWriter().text(peer.place).text(peer.name).text(peer.why_not).text(peer.secret).take();
  }

  std::vector<Handed> run(const std::vector<std::string>& blobs, Deadline deadline) {
    std::vector<Peer> peers;
    for (std::size_t r = 0; r < blobs.size(); ++r) peers.push_back(peer_of(blobs[r], static_cast<int>(r)));
    const Peer& here = peers[rank_];
    secret_ = here.secret;
    for (std::size_t r = 0; r < peers.size(); ++r) {
      if (static_cast<int>(r) == rank_) continue;
      const bool is_near = peers[r].place == here.place;
      if (is_near && listener_) ++expected_;
      if (!peers[r].name.empty() && is_near) {
        visit(static_cast<int>(r), peers[r]);
      } else {
        handed_[r].why_not = !peers[r].name.empty()
                                 ? "it is on another machine, in another network namespace or of another user"
                                 : peers[r].why_not;
      }
    }
    while ((expected_ > 0 || !visits_.empty()) && !deadline.passed()) turn();
    for (const Visit& visit : visits_) handed_[visit.peer].why_not = "it does not answer";
    return std::move(handed_);
  }

 private:
  struct Visit {
    std::size_t peer;
    Descriptor socket;
  };

  std::string listen_at(Peer& peer) {
    constexpr const char* kHex = "0123456789abcdef";
    peer.name = "ark-hand-";
    for (const char byte : random_bytes(kSecret)) {
      peer.name += kHex[static_cast<unsigned char>(byte) >> 4];
      peer.name += kHex[byte & 15];
    }
    peer.secret = random_bytes(kSecret);
    const std::optional<AbstractAddress> address = abstract_address(peer.name);
    listener_ = packet_socket();
    if (!listener_ ||
        bind(listener_.number, reinterpret_cast<const sockaddr*>(&address->name), address->length) != 0 ||
        listen(listener_.number, static_cast<int>(handed_.size())) != 0) {
      const std::string why = "it cannot open a unix socket: " + os_error();
      listener_ = Descriptor();
      return why;
    }
    return {};
  }

  void visit(int rank, const Peer& peer) {
    Visit visit{static_cast<std::size_t>(rank), packet_socket()};
    const std::optional<AbstractAddress> address = abstract_address(peer.name);
    const std::string hello = BlobWriter().number(static_cast<uint32_t>(rank_)).text(peer.secret).take();
    if (!address || !visit.socket ||
        connect(visit.socket.number, reinterpret_cast<const sockaddr*>(&address->name), address->length) !=
            0) {
      handed_[visit.peer].why_not = "it cannot be visited: " + os_error();
    } else if (!is_same_user(visit.socket)) {
      handed_[visit.peer].why_not = "a process of another user has its name";
    } else if (send(visit.socket.number, hello.data(), hello.size(), MSG_NOSIGNAL) < 0) {
      handed_[visit.peer].why_not = "it cannot be visited: " + os_error();
    } else {
      visits_.push_back(std::move(visit));
    }
  }

  void turn() {
    std::vector<pollfd> waiting;
    if (listener_) waiting.push_back({listener_.number, POLLIN, 0});
    for (const Descriptor& guest : guests_) waiting.push_back({guest.number, POLLIN, 0});
    for (const Visit& visit : visits_) waiting.push_back({visit.socket.number, POLLIN, 0});
    poll(waiting.data(), waiting.size(), kPollPause);
    while (listener_) {
      Descriptor guest(accept4(listener_.number, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!guest) break;
      if (is_same_user(guest)) guests_.push_back(std::move(guest));
    }
    std::erase_if(guests_, [&](const Descriptor& guest) { return is_served(guest); });
    std::erase_if(visits_,
                  [&](const Visit& visit) { return receive_descriptor(visit.socket, handed_[visit.peer]); });
  }

  // True: answered, sent away or gone.
  bool is_served(const Descriptor& guest) {
    char bytes[kMostBytes];
    const ssize_t got = recv(guest.number, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) return true;
    try {
      BlobReader hello({bytes, static_cast<std::size_t>(got)}, "a visitor");
      const auto rank = hello.number<uint32_t>();
      const std::string_view secret = hello.text();
      hello.end();
      const bool is_rank =
          rank < handed_.size() && static_cast<int>(rank) != rank_ && is_same_secret(secret_, secret);
      if (!is_rank || std::find(served_.begin(), served_.end(), rank) != served_.end()) return true;
      served_.push_back(rank);
    } catch (const Error&) {
      return true;  // no rank
    }
    send_descriptor(guest, own_);
    --expected_;
    return true;
  }

  const int rank_, own_;
  std::string secret_;
  Descriptor listener_;
  int expected_ = 0;  // guests who will still come
  std::vector<uint32_t> served_;
  std::vector<Descriptor> guests_;
  std::vector<Visit> visits_;
  std::vector<Handed> handed_;
};

}  // namespace

std::vector<Handed> hand_round(Bootstrap& bootstrap, int own, Deadline deadline,
                               std::chrono::milliseconds patience) {
  Round round(bootstrap.rank(), bootstrap.size(), own);
  const std::vector<std::string> blobs = bootstrap.all_gather(round.open(), deadline);
  return round.run(blobs, Deadline::after(patience));
}

}  // namespace ark::dma
