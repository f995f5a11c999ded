#include "dma/verbs/datagram_wire.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "dma/verbs/session.h"
#include "dma/wire_times.h"

namespace ark::dma {
namespace {

// Datagrams of each priority that one poll takes: decode is looked at between any two helpings of bulk.
constexpr std::array<uint32_t, kPriorities> kHelpings = {32, 8};
constexpr int kGoodbyes = 3;  // answers to the last datagram of one who then hears nothing more

// By the codes of InfiniBand; 10 Gbit/s a lane where a code is not known.
double bytes_per_second(const ibv_port_attr& port) {
  constexpr std::pair<int, double> kSpeeds[] = {{1, 2.5}, {2, 5}, {16, 14}, {32, 25}, {64, 50}, {128, 100}};
  constexpr std::pair<int, double> kWidths[] = {{2, 4}, {4, 8}, {8, 12}, {16, 2}};
  double gigabits = 10, lanes = 1;
  for (const auto& [code, speed] : kSpeeds)
    if (port.active_speed == code) gigabits = speed;
  for (const auto& [code, width] : kWidths)
    if (port.active_width == code) lanes = width;
  return lanes * gigabits / 8 * 1e9;
}

// What goes to one peer with one priority, and what comes from there.
struct Line {
  int peer = 0;
  size_t queue = 0;
  DatagramSession session;
  bool is_greeted = false;  // it has been heard at all
  bool is_over = false;     // there is no such peer, it has left, or fault() is about to name it
};

class QueueWire final : public DatagramWire {
 public:
  QueueWire(const WireMap& map, DatagramParts parts, std::function<void(const std::string&)> log)
      : map_(map), parts_(std::move(parts)), log_(std::move(log)) {
    const double rate = bytes_per_second(parts_.port->port);
    for (size_t peer = 0; peer < parts_.peers.size(); ++peer)
      for (size_t queue = 0; queue < parts_.queues.size(); ++queue) {
        const uint32_t window = std::max(parts_.peers[peer].window, DatagramHello::kLeastWindow);
        lines_.push_back({static_cast<int>(peer), queue, DatagramSession(window, parts_.payload, rate)});
        lines_.back().is_over = parts_.peers[peer].way == nullptr;
      }
    for (size_t queue = 0; queue < parts_.queues.size(); ++queue)
      for (uint32_t receive = 0; receive < parts_.queues[queue].receives; ++receive) await(queue, receive);
  }
  ~QueueWire() override { leave(); }

  std::vector<int> greet(std::chrono::nanoseconds time) override {
    const Deadline end = Deadline::after(time);
    for (Line& line : lines_)
      if (!line.is_over) tell(line, {.kind = Datagram::kHello});
    for (;;) {
      listen(steady_ns());
      std::vector<int> silent;
      for (const Line& line : lines_)
        if (!line.is_over && !line.is_greeted) silent.push_back(line.peer);
      if (silent.empty() || fault_ || end.passed()) return silent;
      detail::blind_sleep(kBusySleepNs);
    }
  }
  std::string path_to(int peer) const override { return path(parts_, peer); }

  bool is_ordered() const override { return true; }

  Submitted submit(const Transfer& transfer) override {
    Line& line = lines_[link_index(transfer.peer, transfer.priority)];
    if (line.is_over) return Submitted::kDone;
    if (!line.session.has_room()) return Submitted::kBusy;
    line.session.push(transfer);
    // Bulk goes by poll(), once no decode is left.
    active_ = steady_ns();
    if (transfer.priority == Priority::kDecode) send(line, active_);
    return Submitted::kInFlight;
  }

  size_t poll(std::span<Completion> done) override {
    const int64_t now = steady_ns();
    const size_t heard = listen(now);
    bool is_held_up = false;  // decode that waits for a place in the queue
    for (size_t queue = 0; queue < parts_.queues.size(); ++queue) {
      reclaim(queue);
      for (size_t i = 0; i < parts_.peers.size(); ++i) {
        // In turns, so that none is always the last.
        Line& line = lines_[(turn_ + i) % parts_.peers.size() * kPriorities + queue];
        if (line.is_over) continue;
        line.session.look_at_clock(now);
        if (line.session.is_cut(now)) cut(line, now);
        if (queue == 0 || !is_held_up) send(line, now);
        if (line.session.owes(now) && has_place(queue)) tell(line, {});
        is_held_up |= queue == 0 && line.session.may_send(now);
      }
    }
    ++turn_;
    if (heard != 0) active_ = now;
    size_t reported = 0;
    for (; reported < done.size() && told_ < ended_.size(); ++told_) done[reported++] = {ended_[told_]};
    if (told_ == ended_.size()) {
      ended_.clear();
      told_ = 0;
    }
    // Not the pump's, but it stays awake.
    if (heard != 0 && reported < done.size()) done[reported++] = {};
    return reported;
  }

  void cancel(uint64_t) override {}  // ordered: what was submitted takes effect, or the wire is cut

  bool counts_arrivals(int) const override { return true; }
  int64_t idle_sleep_ns() const override {
    return !is_drained() || steady_ns() - active_ < std::chrono::nanoseconds(kBusyFor).count() ? kBusySleepNs
                                                                                               : kIdleSleepNs;
  }
  bool is_drained() const override {
    return ended_.empty() &&
           std::ranges::all_of(lines_, [](const Line& line) { return line.session.is_drained(); });
  }
  Fault fault() const override { return fault_ && steady_ns() >= fault_from_ ? fault_ : Fault{}; }

 private:
  // ---- what comes
  void await(size_t queue, uint32_t receive) {
    DatagramQueue& from = parts_.queues[queue];
    const VerbsKey own = VerbsKey::of(from.arrivals.key);
    ibv_sge place = {};
    place.addr = own.address + uint64_t{receive} * parts_.stride;
    place.length = parts_.stride;
    place.lkey = own.key;
    ibv_recv_wr work = {}, *refused = nullptr;
    work.wr_id = receive;
    work.sg_list = &place;
    work.num_sge = 1;
    if (ibv_post_recv(from.pair.get(), &work, &refused) != 0) fail("a receive that the device refuses");
  }

  size_t listen(int64_t now) {
    size_t heard = 0;
    for (size_t queue = 0; queue < parts_.queues.size(); ++queue) {
      ibv_wc ended[32];
      static_assert(std::size(ended) >= kHelpings[0]);
      const int count =
          ibv_poll_cq(parts_.queues[queue].received.get(), static_cast<int>(kHelpings[queue]), ended);
      if (count < 0) fail("completion queue");
      for (const ibv_wc& work : std::span(ended, static_cast<size_t>(std::max(count, 0)))) {
        if (work.status != IBV_WC_SUCCESS) {
          fail(ibv_wc_status_str(work.status));
          continue;
        }
        const auto receive = static_cast<uint32_t>(work.wr_id);
        // Acquire, in ibv_poll_cq: the datagram was placed before the completion that it has seen.
        hear(queue,
             {parts_.queues[queue].arrivals.region.base + uint64_t{receive} * parts_.stride, work.byte_len},
             now);
        await(queue, receive);
        ++heard;
      }
    }
    return heard;
  }

  void hear(size_t queue, std::span<const std::byte> arrival, int64_t now) {
    Datagram head;
    if (arrival.size() < kRouteHead + sizeof head) return;
    std::memcpy(&head, arrival.data() + kRouteHead, sizeof head);
    const std::span<const std::byte> payload = arrival.subspan(kRouteHead + sizeof head);
    // Strangers are not heard, nor what is left of a former group.
    if (head.sender >= parts_.peers.size() || parts_.peers[head.sender].way == nullptr ||
        parts_.peers[head.sender].their_secret != head.secret)
      return;
    Line& line = lines_[head.sender * size_t{kPriorities} + queue];
    if (!allows(map_, head, line.peer, DatagramParts::priority(queue), payload.size())) {
      if (!fault_)
        fault_ = {FaultKind::kBadRequest, at(line, "a datagram"), head.counter, head.target_offset};
      return;
    }
    line.is_greeted = true;
    if (head.kind == Datagram::kHello) return;
    if (line.is_over) {
      if (head.has_number()) tell(line, {});  // it has not heard yet that we know
      return;
    }
    if (!line.session.take(head, now, ended_)) return;
    if (head.kind == Datagram::kLeaving) {
      for (int i = 0; i < kGoodbyes; ++i) tell(line, {});
      line.session.give_up(ended_);  // what is still under way to it is no loss
      line.is_over = true;
      return;
    }
    if (head.bytes != 0)
      std::memcpy(map_.memory[map_.rank][head.target].region.base + head.target_offset, payload.data(),
                  head.bytes);
    // Release, in raise: publishes what was placed; pairs with Receiver::wait and Sender::acquire.
    if (head.raise_by != 0) map_.counters[map_.rank][head.counter].raise(head.raise_by);
  }

  // ---- what is sent
  bool has_place(size_t queue) const { return posted_[queue] - freed_[queue] < parts_.queues[queue].depth; }

  void reclaim(size_t queue) {
    ibv_wc ended[32];
    const int count = ibv_poll_cq(parts_.queues[queue].sent.get(), std::size(ended), ended);
    if (count < 0) fail("completion queue");
    // Sends of a queue pair end in order, so each ends all before it.
    for (const ibv_wc& work : std::span(ended, static_cast<size_t>(std::max(count, 0)))) {
      if (work.status != IBV_WC_SUCCESS) fail(ibv_wc_status_str(work.status));
      freed_[queue] = static_cast<uint32_t>(work.wr_id) + 1;
    }
  }

  void send(Line& line, int64_t now) {
    if (!has_place(line.queue)) reclaim(line.queue);
    while (line.session.may_send(now) && has_place(line.queue)) {
      Datagram head;
      uint64_t offset = 0;
      const Transfer& transfer = line.session.next(head, offset, now);
      post(line, head, transfer.source + offset,
           head.bytes == 0 ? nullptr : &map_.memory[map_.rank][transfer.origin]);
    }
  }

  // An acknowledgement alone, or a greeting.
  void tell(Line& line, Datagram head) {
    if (!has_place(line.queue)) reclaim(line.queue);
    if (!has_place(line.queue)) return;
    if (head.kind == 0) line.session.acknowledge(head, steady_ns());
    post(line, head, nullptr, nullptr);
  }

  // The payload is read where it lies, in `origin`; if again, then the same bytes: until the receiver has acknowledged
  // them, nobody has been told that they may change. What of them is read later than that, the receiver has already.
  void post(Line& line, Datagram head, const std::byte* payload, const Memory* origin) {
    DatagramQueue& queue = parts_.queues[line.queue];
    const DatagramPeer& peer = parts_.peers[line.peer];
    const uint32_t number = posted_[line.queue]++, place = number % queue.depth;
    head.secret = peer.our_secret;
    head.sender = static_cast<uint16_t>(map_.rank);
    head.priority = static_cast<uint8_t>(line.queue);
    std::byte* const kept = queue.heads.region.base + place * sizeof head;
    std::memcpy(kept, &head, sizeof head);
    const bool is_inline = sizeof head + head.bytes <= parts_.most_inline;
    const VerbsKey heads = VerbsKey::of(queue.heads.key);
    ibv_sge parts[2] = {};
    parts[0].addr = is_inline ? reinterpret_cast<uintptr_t>(kept) : heads.address + place * sizeof head;
    parts[0].length = sizeof head;
    parts[0].lkey = heads.key;
    if (origin != nullptr) {
      const VerbsKey own = VerbsKey::of(origin->key);
      parts[1].addr = is_inline ? reinterpret_cast<uintptr_t>(payload)
                                : own.address + static_cast<uint64_t>(payload - origin->region.base);
      parts[1].length = head.bytes;
      parts[1].lkey = own.key;
    }
    ibv_send_wr work = {}, *refused = nullptr;
    work.wr_id = number;
    work.opcode = IBV_WR_SEND;
    work.sg_list = parts;
    work.num_sge = origin == nullptr ? 1 : 2;
    work.wr.ud.ah = peer.way.get();
    work.wr.ud.remote_qpn = peer.queues[line.queue];
    work.wr.ud.remote_qkey = peer.key;
    // Often enough to know of free places; a few that nothing is known of are no harm.
    if (number % (queue.depth / 4) == 0) work.send_flags |= IBV_SEND_SIGNALED;
    if (is_inline) work.send_flags |= IBV_SEND_INLINE;
    // The ring's acquire showed us the bytes that a processor has written; the doorbell in ibv_post_send, a release,
    // shows them to the device.
    if (ibv_post_send(queue.pair.get(), &work, &refused) != 0) fail("a send that the device refuses");
  }

  // ---- ends
  void cut(Line& line, int64_t now) {
    line.is_over = true;
    if (!fault_) {
      fault_ = {FaultKind::kCut, at(line, "acknowledgement of a datagram, sent again for two seconds"),
                line.session.acknowledged(), line.session.sent()};
      fault_from_ = now + std::chrono::nanoseconds(kCutGrace).count();
    }
  }

  // Of our own device.
  void fail(const char* what) {
    if (!fault_) fault_ = {FaultKind::kCut, {.what = what, .rank = map_.rank}};
  }

  // Says so to all, and waits until they have it, and with it all before.
  void leave() {
    const Deadline deadline = Deadline::after(kFarewell);
    for (Line& line : lines_) {
      line.is_over |= !line.is_greeted;
      if (!line.is_over) line.session.push_leaving();
    }
    const auto waits = [](const Line& line) { return !line.is_over && !line.session.is_drained(); };
    Completion ignored[32];
    while (std::ranges::any_of(lines_, waits) && !fault_ && !deadline.passed())
      if (poll(ignored) == 0) detail::blind_sleep(20'000);
    DatagramSession::Counts all;
    for (const Line& line : lines_) {
      const DatagramSession::Counts& one = line.session.counts();
      all.sent += one.sent;
      all.again += one.again;
      all.gaps += one.gaps;
      all.time_outs += one.time_outs;
      all.longest_stall = std::max(all.longest_stall, one.longest_stall);
      all.longest_time_out = std::max(all.longest_time_out, one.longest_time_out);
      all.most_attempts = std::max(all.most_attempts, one.most_attempts);
    }
    const auto us = [](int64_t ns) { return std::to_string(ns / 1000); };
    log_("datagrams " + std::to_string(all.sent) + ", again " + std::to_string(all.again) + ", gaps " +
         std::to_string(all.gaps) + ", time-outs " + std::to_string(all.time_outs) + ", in a row " +
         std::to_string(all.most_attempts) + ", the longest " + us(all.longest_time_out) +
         " us, longest stall " + us(all.longest_stall) + " us");
  }

  WaitPoint at(const Line& line, const char* what) const {
    return {.what = what, .rank = map_.rank, .peer = line.peer};
  }

  const WireMap& map_;
  DatagramParts parts_;
  const std::function<void(const std::string&)> log_;
  std::vector<Line> lines_;  // by link_index
  // Sends of each queue, modulo 2^32, and those of them whose places are free again.
  std::array<uint32_t, kPriorities> posted_ = {}, freed_ = {};
  std::vector<uint64_t> ended_;  // ids of transfers; of these, told_ have been told
  size_t told_ = 0;
  size_t turn_ = 0;
  int64_t active_ = 0;
  Fault fault_;
  int64_t fault_from_ = 0;  // when it is told
};

}  // namespace

std::unique_ptr<DatagramWire> make_datagram_wire(const WireMap& map, DatagramParts parts,
                                                 std::function<void(const std::string&)> log) {
  return std::make_unique<QueueWire>(map, std::move(parts), std::move(log));
}

}  // namespace ark::dma
