#include "dma/socket/wire.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "dma/wire_times.h"

namespace ark::dma {
namespace {

using Clock = std::chrono::steady_clock;

// Of one peer; a transfer is taken only while less waits, so one alone may lie above it.
constexpr size_t kMostUnsent = 1 << 20;
// What poll() takes from one connection before it looks at the next; of bulk less, as decode may have come meanwhile.
constexpr size_t kMostAtOnce[kPriorities] = {1 << 20, 64 << 10};
constexpr int kEvents = 64;
// A system that was itself suspended has old news at first: so many looks at a connection must agree.
constexpr std::chrono::milliseconds kLookEvery{100};
constexpr int kLooks = 3;

// For how long the other system has confirmed nothing, neither what was sent nor a probe of an idle connection. A
// process that is stopped or reads nothing does not matter: its system answers. 0 of what is not TCP.
std::chrono::milliseconds unanswered(const Socket& socket) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  if (getsockopt(socket.descriptor(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  const bool was_asked = info.tcpi_retransmits > 0 || info.tcpi_probes > 0;
  return std::chrono::milliseconds(was_asked ? info.tcpi_last_ack_recv : 0);
}

// One connection.
struct Connection {
  int rank = 0;
  Priority priority = Priority::kDecode;
  Socket socket;
  std::vector<std::byte> unsent;
  size_t sent = 0;        // of `unsent`
  WireFrame frame;        // that is being received
  uint64_t have = 0;      // bytes of it, then of its payload
  uint64_t received = 0;  // in all
  int unanswered = 0;     // looks in a row that found so

  size_t waiting() const { return unsent.size() - sent; }
};

class SocketWire final : public Wire {
 public:
  SocketWire(const WireMap& map, std::vector<Socket> decode, std::vector<Socket> bulk)
      : map_(map), ready_(epoll_create1(EPOLL_CLOEXEC)), ranks_(decode.size()) {
    if (!ready_.is_open()) throw Error(Code::kOs, std::string("epoll: ") + std::strerror(errno));
    add(std::move(decode), Priority::kDecode);
    add(std::move(bulk), Priority::kBulk);
  }
  ~SocketWire() override { leave(); }

  bool is_ordered() const override { return true; }

  Submitted submit(const Transfer& transfer) override {
    const bool is_apart = transfer.priority == Priority::kBulk && peers_.size() > ranks_;
    Connection& peer = peers_[static_cast<size_t>(transfer.peer) + (is_apart ? ranks_ : 0)];
    if (!peer.socket.is_open()) return Submitted::kDone;  // it has left, or fault() is about to say so
    flush(peer);
    if (peer.waiting() != 0 && peer.waiting() + transfer.bytes > kMostUnsent) return Submitted::kBusy;
    WireFrame frame;
    frame.kind = WireFrame::kTransfer;
    frame.target_offset = transfer.target_offset;
    // The pump's: bytes of a request, which has 32 bits for them, and a raise by one or none.
    frame.bytes = static_cast<uint32_t>(transfer.bytes);
    frame.raise_by = static_cast<uint32_t>(transfer.raise_by);
    frame.counter = transfer.counter;
    frame.target = transfer.target;
    frame.seal(transfer.source);
    send(peer, frame, transfer.source);
    active_ = Clock::now();
    return Submitted::kDone;
  }

  size_t poll(std::span<Completion>) override {
    for (Connection& peer : peers_)
      if (peer.waiting() != 0 && peer.socket.is_open()) flush(peer);
    epoll_event events[kEvents];
    look_for_cuts();
    const int count = epoll_wait(ready_.descriptor(), events, kEvents, 0);
    for (const Priority priority : {Priority::kDecode, Priority::kBulk})
      for (int i = 0; i < count; ++i) {
        Connection& peer = peers_[events[i].data.u32];
        if (peer.priority == priority && peer.socket.is_open()) receive(peer);
      }
    return 0;
  }

  void cancel(uint64_t) override {}  // nothing is under way after submit()

  bool counts_arrivals(int) const override { return true; }
  int64_t idle_sleep_ns() const override {
    return !is_drained() || Clock::now() - active_ < kBusyFor ? kBusySleepNs : kIdleSleepNs;
  }

  bool is_drained() const override {
    for (const Connection& peer : peers_)
      if (peer.socket.is_open() && peer.waiting() != 0) return false;
    return true;
  }

  Fault fault() const override { return fault_ && Clock::now() >= fault_from_ ? fault_ : Fault{}; }

 private:
  void add(std::vector<Socket> sockets, Priority priority) {
    for (size_t rank = 0; rank < sockets.size(); ++rank) {
      Connection& peer = peers_.emplace_back();
      peer.rank = static_cast<int>(rank);
      peer.priority = priority;
      peer.socket = std::move(sockets[rank]);
      const int idle = 1;  // seconds until the system probes; fails on unix sockets: no matter
      setsockopt(peer.socket.descriptor(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
      epoll_event event = {};
      event.events = EPOLLIN;
      event.data.u32 = static_cast<uint32_t>(peers_.size() - 1);
      if (peer.socket.is_open() &&
          epoll_ctl(ready_.descriptor(), EPOLL_CTL_ADD, peer.socket.descriptor(), &event) != 0)
        throw Error(Code::kOs, std::string("epoll: ") + std::strerror(errno));
    }
  }

  // Past what waits already; what the kernel does not take now joins it.
  void send(Connection& peer, const WireFrame& frame, const std::byte* payload) {
    size_t done = 0;
    const size_t whole = sizeof frame + frame.bytes;
    while (peer.waiting() == 0 && done < whole && peer.socket.is_open()) {
      iovec parts[2];
      int count = 0;
      if (done < sizeof frame)
        parts[count++] = {reinterpret_cast<char*>(const_cast<WireFrame*>(&frame)) + done,
                          sizeof frame - done};
      const size_t skip = done < sizeof frame ? 0 : done - sizeof frame;
      if (frame.bytes > skip) parts[count++] = {const_cast<std::byte*>(payload) + skip, frame.bytes - skip};
      msghdr message = {};
      message.msg_iov = parts;
      message.msg_iovlen = static_cast<size_t>(count);
      const ssize_t took = sendmsg(peer.socket.descriptor(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (took < 0 && errno == EINTR) continue;
      if (took < 0 && errno == EAGAIN) break;
      if (took < 0) return cut(peer);
      done += static_cast<size_t>(took);
    }
    if (done == whole || !peer.socket.is_open()) return;
    peer.unsent.erase(peer.unsent.begin(), peer.unsent.begin() + static_cast<std::ptrdiff_t>(peer.sent));
    peer.sent = 0;
    const auto* head = reinterpret_cast<const std::byte*>(&frame);
    if (done < sizeof frame) {
      peer.unsent.insert(peer.unsent.end(), head + done, head + sizeof frame);
      done = sizeof frame;
    }
    if (done < whole)
      peer.unsent.insert(peer.unsent.end(), payload + (done - sizeof frame), payload + frame.bytes);
  }

  void flush(Connection& peer) {
    while (peer.waiting() != 0) {
      const ssize_t took = ::send(peer.socket.descriptor(), peer.unsent.data() + peer.sent, peer.waiting(),
                                  MSG_NOSIGNAL | MSG_DONTWAIT);
      if (took < 0 && errno == EINTR) continue;
      if (took < 0 && errno == EAGAIN) return;
      if (took < 0) return cut(peer);
      peer.sent += static_cast<size_t>(took);
    }
    peer.unsent.clear();
    peer.sent = 0;
  }

  void receive(Connection& peer) {
    for (size_t taken = 0; taken < kMostAtOnce[static_cast<int>(peer.priority)];) {
      const bool in_head = peer.have < sizeof(WireFrame);
      const uint64_t end = sizeof(WireFrame) + (in_head ? 0 : peer.frame.bytes);
      std::byte* into = in_head ? reinterpret_cast<std::byte*>(&peer.frame) + peer.have
                                : target_of(peer.frame) + (peer.have - sizeof(WireFrame));
      const ssize_t got = recv(peer.socket.descriptor(), into, end - peer.have, MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return cut(peer);
      peer.have += static_cast<uint64_t>(got);
      peer.received += static_cast<uint64_t>(got);
      taken += static_cast<size_t>(got);
      active_ = Clock::now();
      if (in_head && peer.have == sizeof(WireFrame) && !take_head(peer)) return;
      if (peer.have == sizeof(WireFrame) + peer.frame.bytes && peer.have >= sizeof(WireFrame) &&
          !end_frame(peer))
        return;
    }
  }

  std::byte* target_of(const WireFrame& frame) const {
    return map_.memory[map_.rank][frame.target].region.base + frame.target_offset;
  }

  // False: nothing more comes from this peer.
  bool take_head(Connection& peer) {
    const WireFrame& frame = peer.frame;
    if (frame.sum_of_head() != frame.head_sum) return damaged(peer, frame.sum_of_head(), frame.head_sum);
    if (frame.kind == WireFrame::kLeaving) {
      peer.socket = Socket();
      return false;
    }
    if (frame.kind == WireFrame::kTransfer &&
        map_.may_write(frame.target, frame.target_offset, frame.bytes) &&
        (frame.raise_by == 0 || map_.may_raise(peer.rank, frame.counter)))
      return true;
    const std::vector<Memory>& own = map_.memory[map_.rank];
    fault_ = {FaultKind::kBadRequest, {.what = "frame of a peer", .rank = map_.rank, .peer = peer.rank}};
    fault_.seen = frame.target + size_t{1} < own.size() ? own[frame.target].region.bytes : 0;
    fault_.needed = frame.target_offset + frame.bytes;
    peer.socket = Socket();
    return false;
  }

  bool end_frame(Connection& peer) {
    const WireFrame& frame = peer.frame;
    // Before the raise, which tells that the bytes are good.
    const uint32_t sum = frame.bytes == 0 ? crc32c({}) : crc32c({target_of(frame), frame.bytes});
    if (sum != frame.payload_sum) return damaged(peer, sum, frame.payload_sum);
    // Release, in raise: publishes what was received; pairs with Receiver::wait and Sender::acquire.
    if (frame.raise_by != 0) map_.counters[map_.rank][frame.counter].raise(frame.raise_by);
    peer.have = 0;
    return true;
  }

  bool damaged(Connection& peer, uint32_t sum, uint32_t sent) {
    fault_ = {FaultKind::kBadRequest,
              {.what = "frame of a peer, damaged on its way: its sum", .rank = map_.rank, .peer = peer.rank}};
    fault_.seen = sum;
    fault_.needed = sent;
    peer.socket = Socket();
    return false;
  }

  // The bootstrap looks at links to rank 0 alone.
  void look_for_cuts() {
    const Clock::time_point now = Clock::now();
    if (now < next_look_) return;
    next_look_ = now + kLookEvery;
    for (Connection& peer : peers_) {
      if (!peer.socket.is_open()) continue;
      const std::chrono::milliseconds silence = unanswered(peer.socket);
      peer.unanswered = silence >= kMostUnanswered ? peer.unanswered + 1 : 0;
      if (peer.unanswered < kLooks) continue;
      cut(peer, "milliseconds in which its system confirms nothing", static_cast<uint64_t>(silence.count()),
          static_cast<uint64_t>(kMostUnanswered.count()));
    }
  }

  void cut(Connection& peer) { cut(peer, "bytes of a connection", peer.received, peer.received + 1); }
  void cut(Connection& peer, const char* what, uint64_t seen, uint64_t needed) {
    peer.socket = Socket();
    if (fault_) return;
    fault_ = {FaultKind::kCut, {.what = what, .rank = map_.rank, .peer = peer.rank}};
    fault_.seen = seen;
    fault_.needed = needed;
    fault_from_ = Clock::now() + kCutGrace;
  }

  // Says so, and waits until the peers' kernels have all: a socket that closes with bytes unread resets.
  void leave() {
    WireFrame last;
    last.kind = WireFrame::kLeaving;
    last.seal(nullptr);
    for (Connection& peer : peers_)
      if (peer.socket.is_open()) send(peer, last, nullptr);
    const Deadline deadline = Deadline::after(kFarewell);
    while (!is_delivered() && !deadline.passed()) {
      poll({});
      detail::blind_sleep(kBusySleepNs);
    }
  }

  bool is_delivered() const {
    for (const Connection& peer : peers_) {
      int queued = 0;
      if (!peer.socket.is_open()) continue;
      if (peer.waiting() != 0) return false;
      if (ioctl(peer.socket.descriptor(), SIOCOUTQ, &queued) == 0 && queued != 0) return false;
    }
    return true;
  }

  const WireMap& map_;
  const Socket ready_;  // an epoll of all connections: a look costs one call, however many they are
  const size_t ranks_;
  std::vector<Connection> peers_;  // by rank; then, where there are such for bulk, again
  Clock::time_point active_{}, next_look_{};
  Fault fault_;
  Clock::time_point fault_from_{};  // when it is told
};

}  // namespace

std::unique_ptr<Wire> make_socket_wire(const WireMap& map, std::vector<Socket> sockets,
                                       std::vector<Socket> bulk) {
  return std::make_unique<SocketWire>(map, std::move(sockets), std::move(bulk));
}

}  // namespace ark::dma
