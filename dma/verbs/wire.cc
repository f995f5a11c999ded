#include "dma/verbs/wire.h"

#include <arpa/inet.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "dma/arrivals.h"
#include "dma/verbs/hello.h"
#include "dma/wire_times.h"

namespace ark::dma {
namespace {

using Clock = std::chrono::steady_clock;

// The immediate: the route, and above it by how much its counter rises. By nothing: the peer leaves in good order.
constexpr uint32_t kMostRaise = UINT32_MAX >> kRouteBits;
constexpr uint32_t kLeaving = 0;

// What a work request is called in its completion: receives as receive_name() says, sends by link and count.
uint64_t send_name(size_t link, uint32_t count) { return uint64_t{link} << 33 | count; }
bool is_receive(uint64_t name) { return (name & receive_name(0)) != 0; }

// A link as the data path sees it. All counts are modulo 2^32 and compared by their difference.
struct Lane {
  VerbsLink link;
  std::vector<uint64_t> ids;  // by send % depth: of the transfer that its completion ends, or 0
  uint32_t posted = 0;        // sends
  uint32_t ended = 0;         // sends whose places in the queue are free again
  uint32_t silent = 0;        // sends since the last that asked for a completion
  uint32_t raises = 0;        // sends that take a receive of the peer's
  uint32_t taken = 0;         // raises of the peer's, whose receives are posted again
  uint32_t told = 0;          // of these, how many the peer has been told
  bool is_over = false;       // there is no such peer, it has left, or fault() is about to name it
  bool has_left = false;      // in good order
};

class VerbsWire final : public Wire {
 public:
  VerbsWire(const WireMap& map, VerbsParts parts) : map_(map), parts_(std::move(parts)), arrivals_(map) {
    for (VerbsLink& link : parts_.links) {
      lanes_.push_back({std::move(link), std::vector<uint64_t>(parts_.depth)});
      lanes_.back().is_over = lanes_.back().link.pair == nullptr;
    }
  }
  ~VerbsWire() override { leave(); }

  bool is_ordered() const override { return true; }

  // Data and raise are one WRITE_WITH_IMM: the responder places the data before it completes the receive that tells
  // the immediate. Earlier pieces of a request are plain WRITEs on the same queue pair, which acts in order.
  Submitted submit(const Transfer& transfer) override {
    Lane& lane = lanes_[link_index(transfer.peer, transfer.priority)];
    if (lane.is_over) return Submitted::kDone;
    const uint64_t longest = parts_.port->port.max_msg_sz;
    const uint64_t sends = std::max<uint64_t>(1, (transfer.bytes + longest - 1) / longest);
    if (sends > parts_.depth / 2 || transfer.raise_by > kMostRaise) return refuse(transfer);
    if (!has_room(lane, static_cast<uint32_t>(sends)) || (transfer.raise_by != 0 && !may_raise(lane)))
      return Submitted::kBusy;

    const VerbsKey target = VerbsKey::of(map_.memory[transfer.peer][transfer.target].key);
    const Memory& origin = map_.memory[map_.rank][transfer.origin];
    // Inline: copied into the queue before post() returns, and needs no completion of its own. The host, which copies,
    // does not reach memory of a device.
    const bool is_inline =
        transfer.bytes <= lane.link.most_inline && (transfer.bytes == 0 || !origin.on_device);
    const VerbsKey own = VerbsKey::of(origin.key);
    for (uint64_t done = 0, left = sends; left > 0; done += longest, --left) {
      const bool is_last = left == 1;
      const std::byte* source = transfer.source + done;
      ibv_sge piece = {};
      piece.addr = is_inline ? reinterpret_cast<uintptr_t>(source)
                             : own.address + static_cast<uint64_t>(source - origin.region.base);
      piece.length = static_cast<uint32_t>(is_last ? transfer.bytes - done : longest);
      piece.lkey = own.key;
      ibv_send_wr work = write_of(piece, target.address + transfer.target_offset + done, target.key);
      if (is_last && transfer.raise_by != 0)
        with_immediate(lane, work, transfer.counter | static_cast<uint32_t>(transfer.raise_by) << kRouteBits);
      post(lane, work, is_last && !is_inline ? transfer.id : 0, is_inline);
    }
    active_ = Clock::now();
    return is_inline ? Submitted::kDone : Submitted::kInFlight;
  }

  size_t poll(std::span<Completion> done) override {
    ibv_wc ended[32];
    const int room = static_cast<int>(std::min(done.size(), std::size(ended)));
    const int count = ibv_poll_cq(parts_.completions.get(), room, ended);
    arrivals_.looked();
    if (count < 0 && !fault_) fault_ = {FaultKind::kCut, {.what = "completion queue", .rank = map_.rank}};
    size_t reported = 0;
    for (const ibv_wc& work : std::span(ended, static_cast<size_t>(std::max(count, 0)))) {
      Lane& lane = lanes_[work.wr_id >> 33];
      if (work.status != IBV_WC_SUCCESS) cut(lane, ibv_wc_status_str(work.status));
      if (is_receive(work.wr_id)) {
        if (work.status == IBV_WC_SUCCESS) take(lane, work);
        done[reported++] = {};
      } else {
        // Sends of a queue pair end in order, so this ends all before it. Of a lane that is over all ends somehow.
        const auto which = static_cast<uint32_t>(work.wr_id);
        lane.ended = which + 1;
        if (const uint64_t id = lane.ids[which % parts_.depth]; id != 0) done[reported++] = {id};
      }
    }
    if (count != 0) active_ = Clock::now();
    if (must_tell_) tell();
    return reported;
  }

  void cancel(uint64_t) override {}  // ordered: what was submitted takes effect, or the wire is cut

  bool counts_arrivals(int) const override { return true; }
  int64_t idle_sleep_ns() const override {
    return Clock::now() - active_ < kBusyFor ? kBusySleepNs : kIdleSleepNs;
  }

  Fault fault() const override { return fault_ && Clock::now() >= fault_from_ ? fault_ : Fault{}; }

 private:
  // One place is kept for tell(): what the peer may send depends on it.
  bool has_room(const Lane& lane, uint32_t sends) const {
    return lane.posted - lane.ended + sends < parts_.depth;
  }

  // A receive is posted at the peer for every raise that is sent, so none is ever refused (RNR): it posts its depth
  // at the start, one for each that it takes, and its count of these is written here after they are posted.
  // Relaxed: the count stands for itself; no memory of ours is read because of it.
  bool may_raise(const Lane& lane) {
    const uint32_t reposted = std::atomic_ref(told_words()[index_of(lane)]).load(std::memory_order_relaxed);
    return lane.raises - reposted < lane.link.their_depth;
  }

  uint32_t* told_words() { return reinterpret_cast<uint32_t*>(parts_.told.region.base); }

  static ibv_send_wr write_of(ibv_sge& piece, uint64_t address, uint32_t key) {
    ibv_send_wr work = {};
    work.opcode = IBV_WR_RDMA_WRITE;
    work.wr.rdma.remote_addr = address;
    work.wr.rdma.rkey = key;
    work.sg_list = &piece;
    work.num_sge = piece.length != 0;
    return work;
  }

  static void with_immediate(Lane& lane, ibv_send_wr& work, uint32_t immediate) {
    work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    work.imm_data = htonl(immediate);
    ++lane.raises;
  }

  // `id`: of the transfer that this ends, or 0. Asks for a completion where one is needed: for an id, and often
  // enough to know that places are free. The ring's acquire showed us the bytes that a processor has written; the
  // doorbell in ibv_post_send, a release, shows them to the device.
  void post(Lane& lane, ibv_send_wr& work, uint64_t id, bool is_inline) {
    const bool is_told = id != 0 || ++lane.silent >= parts_.depth / 4;
    if (is_told) lane.silent = 0;
    work.wr_id = send_name(index_of(lane), lane.posted);
    if (is_told) work.send_flags |= IBV_SEND_SIGNALED;
    if (is_inline && work.num_sge != 0) work.send_flags |= IBV_SEND_INLINE;
    lane.ids[lane.posted++ % parts_.depth] = id;
    ibv_send_wr* refused = nullptr;
    if (ibv_post_send(lane.link.pair.get(), &work, &refused) != 0)
      cut(lane, "a send that the device refuses");
  }

  // An immediate of a peer's. Acquire, in ibv_poll_cq: the data was placed before the completion that it has seen.
  void take(Lane& lane, const ibv_wc& work) {
    ibv_recv_wr again = {}, *refused = nullptr;
    again.wr_id = receive_name(index_of(lane));
    if (!lane.is_over && ibv_post_recv(lane.link.pair.get(), &again, &refused) != 0)
      return cut(lane, "a receive that the device refuses");
    ++lane.taken;
    must_tell_ |= must_be_told(lane);
    const uint32_t immediate = ntohl(work.imm_data);
    const uint32_t route = immediate & (Request::kRoutes - 1), raise_by = immediate >> kRouteBits;
    if (work.opcode == IBV_WC_RECV_RDMA_WITH_IMM && raise_by == 0) {
      lane.is_over = lane.has_left = true;  // what is still under way to it is no loss
      return;
    }
    if (work.opcode != IBV_WC_RECV_RDMA_WITH_IMM || !map_.may_raise(peer_of(lane), route)) {
      if (!fault_)
        fault_ = {FaultKind::kBadRequest, at(lane, "route of an immediate"), route,
                  route_of(peer_of(lane), map_.channels, 0, RouteEnd::kArrived)};
      return;
    }
    if (!arrivals_.raise(route, raise_by)) cut(lane, "flush of what has come into memory of the device");
  }

  bool must_be_told(const Lane& lane) const { return lane.taken - lane.told >= parts_.depth / 2; }

  // By a plain WRITE, which takes no receive and so waits for nobody. Where there is no room, again at the next poll.
  void tell() {
    must_tell_ = false;
    for (Lane& lane : lanes_) {
      if (lane.is_over || !must_be_told(lane)) continue;
      if (lane.posted - lane.ended == parts_.depth) {
        must_tell_ = true;
        continue;
      }
      const size_t from = lanes_.size() + index_of(lane);
      // A device that takes nothing inline may read it late: it then finds a newer count, of receives posted as well.
      std::atomic_ref(told_words()[from]).store(lane.taken, std::memory_order_relaxed);
      const bool is_inline = lane.link.most_inline >= sizeof lane.taken;
      const VerbsKey own = VerbsKey::of(parts_.told.key);
      ibv_sge piece = {};
      piece.addr = is_inline ? reinterpret_cast<uintptr_t>(told_words() + from)
                             : own.address + from * sizeof(uint32_t);
      piece.length = sizeof(uint32_t);
      piece.lkey = own.key;
      ibv_send_wr work = write_of(piece, lane.link.told_at, lane.link.told_key);
      lane.told = lane.taken;
      post(lane, work, 0, is_inline);
    }
  }

  void cut(Lane& lane, const char* why) {
    if (lane.has_left || fault_) return;
    lane.is_over = true;
    fault_ = {FaultKind::kCut, at(lane, why), lane.ended, lane.posted};
    fault_from_ = Clock::now() + kCutGrace;
  }

  Submitted refuse(const Transfer& transfer) {
    if (!fault_) {
      fault_ = {FaultKind::kBadRequest, {.what = "length or raise of a transfer", .rank = map_.rank}};
      fault_.at.peer = transfer.peer;
      fault_.seen = parts_.port->port.max_msg_sz * uint64_t{parts_.depth / 2};
      fault_.needed = transfer.bytes;
    }
    return Submitted::kDone;
  }

  // Says so to all, and waits until what was submitted has arrived: a queue pair takes what it has not sent with it.
  void leave() {
    const Deadline deadline = Deadline::after(kFarewell);
    std::vector<bool> is_said(lanes_.size());
    Completion ignored[32];
    for (bool waits = true; waits && !deadline.passed();) {
      waits = false;
      for (Lane& lane : lanes_) {
        if (lane.is_over) continue;
        if (!is_said[index_of(lane)] && has_room(lane, 1) && may_raise(lane)) {
          ibv_send_wr work = {};
          with_immediate(lane, work, kLeaving);
          post(lane, work, UINT64_MAX, true);
          is_said[index_of(lane)] = true;
        }
        waits |= !is_said[index_of(lane)] || lane.posted != lane.ended;
      }
      if (poll(ignored) == 0 && waits) detail::blind_sleep(20'000);
    }
  }

  size_t index_of(const Lane& lane) const { return static_cast<size_t>(&lane - lanes_.data()); }
  int peer_of(const Lane& lane) const { return static_cast<int>(index_of(lane)) / kPriorities; }
  WaitPoint at(const Lane& lane, const char* what) const {
    return {.what = what, .rank = map_.rank, .peer = peer_of(lane)};
  }

  const WireMap& map_;
  VerbsParts parts_;
  Arrivals arrivals_;
  std::vector<Lane> lanes_;  // goes before what its queue pairs use
  bool must_tell_ = false;
  Clock::time_point active_{};
  Fault fault_;
  Clock::time_point fault_from_{};  // when it is told
};

}  // namespace

std::unique_ptr<Wire> make_verbs_wire(const WireMap& map, VerbsParts parts) {
  return std::make_unique<VerbsWire>(map, std::move(parts));
}

}  // namespace ark::dma
