#include "dma/ucx/wire.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

#include "base/error.h"
#include "dma/wire_times.h"

namespace ark::dma {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kMessage = 0;   // the one kind of active message
constexpr int kMostProgress = 64;  // calls of one poll()

class UcxWire;

// A message under way, until UCX says that its memory may be used again.
struct Sending {
  UcxFrame frame;
  uint64_t id = 0;  // of the transfer; 0: of our own
  class Lane* lane = nullptr;
};

// What goes to one peer with one priority, and what comes from there.
class Lane {
 public:
  UcxWire* wire = nullptr;
  int peer = 0;
  ucp_ep_h endpoint = nullptr;
  uint64_t ended = 0;          // messages that have, with all before them
  std::deque<bool> has_ended;  // those from there on
  UcxOrder order;              // of what comes
  bool is_over = true;         // there is no such peer, it has left, or fault() is about to name it
  bool has_left = false;       // in good order
  bool is_delivered = false;   // the peer has answered our last message
};

// A payload that UCX fetches straight into its place.
struct Fetching {
  Lane* lane;
  UcxFrame frame;
};

class UcxWire final : public Wire {
 public:
  UcxWire(const WireMap& map, std::unique_ptr<UcxWorker> worker, std::vector<UcxPeer> peers)
      : map_(map), worker_(std::move(worker)), peers_(std::move(peers)), lanes_(peers_.size() * kPriorities) {
    ucp_am_handler_param_t handler = {};
    handler.field_mask =
        UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kMessage;
    handler.cb = on_message;
    handler.arg = this;
    if (const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_->handle, &handler);
        status != UCS_OK)
      throw Error(Code::kUnavailable, std::string("transport ucx: ") + ucs_status_string(status));
  }
  ~UcxWire() override { leave(); }

  void connect(Deadline deadline) {
    for (size_t i = 0; i < lanes_.size(); ++i) open(lanes_[i], static_cast<int>(i) / kPriorities);
    for (Lane& lane : lanes_)
      if (!lane.is_over) send(lane, {.kind = UcxFrame::kHello}, nullptr, 0);
    const auto is_silent = [](const Lane& lane) {
      return lane.endpoint != nullptr && (lane.order.taken() == 0 || !lane.has_ended.empty());
    };
    for (;;) {
      const auto silent = std::find_if(lanes_.begin(), lanes_.end(), is_silent);
      if (silent == lanes_.end()) return;
      if (deadline.passed() || fault_)
        throw Error(Code::kUnavailable, "transport ucx: rank " + std::to_string(map_.rank) +
                                            " cannot reach rank " +
                                            std::to_string(fault_ ? fault_.at.peer : silent->peer) +
                                            "; UCX_TLS and UCX_NET_DEVICES choose the way");
      if (ucp_worker_progress(worker_->handle) == 0) detail::blind_sleep(kBusySleepNs);
    }
  }

  bool is_ordered() const override { return true; }

  Submitted submit(const Transfer& transfer) override {
    Lane& lane = lane_of(transfer.peer, static_cast<size_t>(transfer.priority));
    if (lane.is_over) return Submitted::kDone;  // it has left, or fault() is about to say so
    if (lane.has_ended.size() >= kMostUcxInFlight) return Submitted::kBusy;
    const UcxFrame frame{.target_offset = transfer.target_offset,
                         .bytes = transfer.bytes,
                         .raise_by = transfer.raise_by,
                         .counter = transfer.counter,
                         .target = transfer.target,
                         .kind = UcxFrame::kTransfer};
    active_ = Clock::now();
    return send(lane, frame, transfer.source, transfer.id) ? Submitted::kDone : Submitted::kInFlight;
  }

  size_t poll(std::span<Completion> done) override {
    for (int i = 0; i < kMostProgress && ucp_worker_progress(worker_->handle) != 0; ++i) {
    }
    const size_t count = std::min(done.size(), ended_.size());
    for (size_t i = 0; i < count; ++i) done[i] = {ended_[i], false};
    ended_.erase(ended_.begin(), ended_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }

  void cancel(uint64_t) override {}  // only unordered wires are asked

  bool counts_arrivals(int) const override { return true; }
  int64_t idle_sleep_ns() const override {
    return !is_drained() || Clock::now() - active_ < kBusyFor ? kBusySleepNs : kIdleSleepNs;
  }
  bool is_drained() const override {
    return ended_.empty() &&
           std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.has_ended.empty(); });
  }
  Fault fault() const override { return fault_ && Clock::now() >= fault_from_ ? fault_ : Fault{}; }

 private:
  Lane& lane_of(int peer, size_t priority) {
    return lanes_[static_cast<size_t>(peer) * kPriorities + priority];
  }

  void open(Lane& lane, int peer) {
    lane.wire = this;
    lane.peer = peer;
    if (!map_.carries_to(peer)) return;
    ucp_ep_params_t parameters = {};
    parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                            UCP_EP_PARAM_FIELD_ERR_HANDLER;
    parameters.address = reinterpret_cast<const ucp_address_t*>(peers_[peer].address.data());
    parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;  // a death is told
    parameters.err_handler = {on_error, &lane};
    if (const ucs_status_t status = ucp_ep_create(worker_->handle, &parameters, &lane.endpoint);
        status != UCS_OK)
      throw Error(Code::kUnavailable,
                  "transport ucx: no way to rank " + std::to_string(peer) + ": " + ucs_status_string(status));
    lane.is_over = false;
  }

  // True: its memory may be used again.
  bool send(Lane& lane, UcxFrame frame, const std::byte* payload, uint64_t id) {
    if (free_.empty()) free_.push_back(&sendings_.emplace_back());
    Sending* sending = free_.back();
    free_.pop_back();
    frame.secret = peers_[lane.peer].our_secret;
    frame.number = lane.ended + lane.has_ended.size();
    frame.sender = static_cast<uint16_t>(map_.rank);
    frame.priority = static_cast<uint16_t>((&lane - lanes_.data()) % kPriorities);
    *sending = {frame, id, &lane};
    lane.has_ended.push_back(false);
    ucp_request_param_t how = {};
    how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    how.cb.send = on_sent;
    how.user_data = sending;
    const ucs_status_ptr_t request = ucp_am_send_nbx(lane.endpoint, kMessage, &sending->frame,
                                                     sizeof sending->frame, payload, frame.bytes, &how);
    if (UCS_PTR_IS_PTR(request)) return false;
    if (UCS_PTR_IS_ERR(request)) cut(lane);
    end(sending);
    return true;
  }

  void end(Sending* sending) {
    Lane& lane = *sending->lane;
    lane.has_ended[sending->frame.number - lane.ended] = true;
    for (; !lane.has_ended.empty() && lane.has_ended.front(); lane.has_ended.pop_front()) ++lane.ended;
    free_.push_back(sending);
  }

  static void on_sent(void* request, ucs_status_t status, void* user_data) {
    auto* sending = static_cast<Sending*>(user_data);
    Lane& lane = *sending->lane;
    if (sending->id != 0) lane.wire->ended_.push_back(sending->id);
    if (status != UCS_OK) lane.wire->cut(lane);
    lane.wire->end(sending);
    ucp_request_free(request);
  }

  static void on_error(void* user_data, ucp_ep_h, ucs_status_t) {
    Lane& lane = *static_cast<Lane*>(user_data);
    lane.wire->cut(lane);
  }

  static ucs_status_t on_message(void* self, const void* header, size_t header_bytes, void* data,
                                 size_t bytes, const ucp_am_recv_param_t* how) {
    return static_cast<UcxWire*>(self)->take(header, header_bytes, data, bytes, *how);
  }

  ucs_status_t take(const void* header, size_t header_bytes, void* data, size_t bytes,
                    const ucp_am_recv_param_t& how) {
    UcxFrame frame;
    if (header_bytes != sizeof frame) return UCS_OK;
    std::memcpy(&frame, header, sizeof frame);
    const bool is_known = frame.sender < peers_.size() && map_.carries_to(frame.sender) &&
                          frame.priority < kPriorities && frame.secret == peers_[frame.sender].their_secret;
    if (!is_known) return UCS_OK;  // a stranger
    Lane& lane = lane_of(frame.sender, frame.priority);
    if (lane.has_left || fault_) return UCS_OK;
    active_ = Clock::now();
    if (!lane.order.allows(map_, frame, bytes)) {
      fault_ = {FaultKind::kBadRequest,
                {.what = "message of a peer", .rank = map_.rank, .peer = frame.sender}};
      fault_.seen = frame.target_offset;
      fault_.needed = bytes;
      lane.is_over = true;
      return UCS_OK;
    }
    if (bytes == 0) {
      arrive(lane, frame);
      return UCS_OK;
    }
    std::byte* target = map_.memory[map_.rank][frame.target].region.base + frame.target_offset;
    if ((how.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
      std::memcpy(target, data, bytes);
      arrive(lane, frame);
      return UCS_OK;
    }
    ucp_request_param_t fetch = {};
    fetch.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    fetch.cb.recv_am = on_fetched;
    fetch.user_data = new Fetching{&lane, frame};
    const ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker_->handle, data, target, bytes, &fetch);
    if (UCS_PTR_IS_PTR(request)) return UCS_INPROGRESS;
    on_fetched(nullptr, UCS_PTR_STATUS(request), bytes, fetch.user_data);
    return UCS_OK;
  }

  static void on_fetched(void* request, ucs_status_t status, size_t, void* user_data) {
    const std::unique_ptr<Fetching> fetching(static_cast<Fetching*>(user_data));
    UcxWire& wire = *fetching->lane->wire;
    wire.active_ = Clock::now();
    if (status == UCS_OK)
      wire.arrive(*fetching->lane, fetching->frame);
    else
      wire.cut(*fetching->lane);
    if (request != nullptr) ucp_request_free(request);
  }

  // The payload is in its place; it counts when all before it has arrived.
  void arrive(Lane& lane, const UcxFrame& frame) {
    lane.order.arrive(frame, [&](const UcxFrame& next) {
      // Release, in raise: publishes what was received; pairs with Receiver::wait and Sender::acquire.
      if (next.raise_by != 0) map_.counters[map_.rank][next.counter].raise(next.raise_by);
      if (next.kind == UcxFrame::kFarewell) lane.is_delivered = true;
      if (next.kind == UcxFrame::kLeaving) {
        if (!lane.is_over) send(lane, {.kind = UcxFrame::kFarewell}, nullptr, 0);
        lane.has_left = lane.is_over = true;
      }
    });
  }

  void cut(Lane& lane) {
    const bool is_news = !lane.is_over && !lane.has_left && !is_leaving_;
    lane.is_over = true;
    if (!is_news || fault_) return;
    fault_ = {FaultKind::kCut, {.what = "messages of a peer", .rank = map_.rank, .peer = lane.peer}};
    fault_.seen = lane.order.taken();
    fault_.needed = lane.order.taken() + 1;
    fault_from_ = Clock::now() + kCutGrace;
  }

  // Says so, and waits until the peers have all: what UCX still holds ends with the worker.
  void leave() {
    is_leaving_ = true;
    for (Lane& lane : lanes_)
      if (!lane.is_over) send(lane, {.kind = UcxFrame::kLeaving}, nullptr, 0);
    const auto is_done = [](const Lane& lane) {
      return lane.endpoint == nullptr || ((lane.is_over || lane.is_delivered) && lane.has_ended.empty());
    };
    const Deadline deadline = Deadline::after(kFarewell);
    while (!std::all_of(lanes_.begin(), lanes_.end(), is_done) && !deadline.passed())
      if (ucp_worker_progress(worker_->handle) == 0) detail::blind_sleep(kBusySleepNs);
    // Not by force: UCX 1.13 aborts the process where messages of its own still wait.
    const ucp_request_param_t how = {};
    std::vector<void*> closing;
    for (const Lane& lane : lanes_) {
      const ucs_status_ptr_t request = lane.endpoint ? ucp_ep_close_nbx(lane.endpoint, &how) : nullptr;
      if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
    }
    const auto is_closed = [](void* r) { return ucp_request_check_status(r) != UCS_INPROGRESS; };
    while (!std::all_of(closing.begin(), closing.end(), is_closed) && !deadline.passed())
      if (ucp_worker_progress(worker_->handle) == 0) detail::blind_sleep(kBusySleepNs);
    for (void* request : closing) ucp_request_free(request);
  }

  const WireMap& map_;
  const std::unique_ptr<UcxWorker> worker_;
  const std::vector<UcxPeer> peers_;
  std::vector<Lane> lanes_;       // by peer and priority
  std::deque<Sending> sendings_;  // never moves them
  std::vector<Sending*> free_;    // of these
  std::vector<uint64_t> ended_;   // transfers that poll() has not told yet
  Clock::time_point active_{};
  bool is_leaving_ = false;
  Fault fault_;
  Clock::time_point fault_from_{};  // when it is told
};

}  // namespace

std::unique_ptr<Wire> make_ucx_wire(const WireMap& map, std::unique_ptr<UcxWorker> worker,
                                    std::vector<UcxPeer> peers, Deadline deadline) {
  auto wire = std::make_unique<UcxWire>(map, std::move(worker), std::move(peers));
  wire->connect(deadline);
  return wire;
}

}  // namespace ark::dma
