#include "dma/pump.h"

#include <algorithm>

namespace ark::dma {

// What an idle pump waits for: a request, or something of a peer's, which some wires find by looking alone.
struct Pump::Stirred {
  Pump& pump;
  Counter32::Reached rung;

  // Wires that place what comes in do so here, too: then sums may have all their parts.
  bool operator()() {
    return rung() || (!pump.has_fault_.load() && (pump.take_completions() != 0 || pump.add_arrivals() != 0));
  }
  std::atomic<uint32_t>& sleep_on() { return rung.sleep_on(); }
};

Pump::Pump(const Parts& parts, const PumpOptions& options)
    : parts_(parts),
      options_(options),
      ordered_(parts.wire->is_ordered()),
      taken_(std::make_unique<Counter64[]>(parts.regions.size() * parts.channels)) {}

size_t Pump::run_once() {
  if (has_fault_.load(std::memory_order_relaxed)) return 0;
  size_t done = take_completions();
  if (has_fault_.load(std::memory_order_relaxed)) return done;
  done += take_requests();
  done += advance_flights();
  return done + add_arrivals();
}

bool Pump::is_idle() const {
  if (has_fault_.load(std::memory_order_relaxed)) return true;
  if (oldest_ != newest_ || has_bulk_ || !parts_.wire->is_drained()) return false;
  return std::all_of(std::begin(parts_.queues->rings), std::end(parts_.queues->rings),
                     [](const Ring& ring) { return ring.is_empty(); });
}

void Pump::start() {
  thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
}

void Pump::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  parts_.queues->doorbell.raise();
  thread_.join();
}

void Pump::poll_while(std::function<bool()> may_post, int64_t nap_ns) {
  {
    const std::lock_guard lock(polling_);
    may_post_ = std::move(may_post);
    poll_nap_ns_ = nap_ns;
  }
  parts_.queues->doorbell.raise();
}

bool Pump::must_poll(int64_t& nap_ns) {
  const std::lock_guard lock(polling_);
  nap_ns = poll_nap_ns_;
  return may_post_ && may_post_();
}

void Pump::look_after(ArrivalSums* sums) {
  // In one order with the two in add_arrivals(), all sequentially consistent: either it sees the new pointer, or we see
  // that it uses the old one.
  sums_.store(sums);
  while (uses_sums_.load()) detail::blind_sleep(20'000);
}

// Whether no request waits to be taken, nor a transfer for room on the wire.
bool Pump::has_time() const {
  if (has_bulk_) return false;
  for (uint64_t number = oldest_; number != newest_; ++number) {
    const State state = flights_[number % kFlights].state;
    if (state == State::kNew || state == State::kWritten) return false;
  }
  return std::all_of(std::begin(parts_.queues->rings), std::end(parts_.queues->rings),
                     [](const Ring& ring) { return ring.is_empty(); });
}

size_t Pump::add_arrivals() {
  if (sums_.load(std::memory_order_relaxed) == nullptr) return 0;
  uses_sums_.store(true);
  size_t done = 0;
  if (ArrivalSums* sums = sums_.load(); sums != nullptr && !parts_.abort->raised() && !has_fault_.load())
    done = sums->look(has_time());
  uses_sums_.store(false);
  return done;
}

bool Pump::must_look() {
  if (sums_.load(std::memory_order_relaxed) == nullptr) return false;
  uses_sums_.store(true);
  const ArrivalSums* sums = sums_.load();
  const bool must = sums != nullptr && sums->must_look();
  uses_sums_.store(false);
  return must;
}

void Pump::run(std::stop_token stop) {
  bool was_busy = true;
  while (!stop.stop_requested()) {
    // Read before the work: a request posted after the rings were seen empty changes it.
    const uint32_t rung = parts_.queues->doorbell.load();
    // Asked before the work, too: what was posted while it was true is seen before the pump sleeps.
    int64_t poll_nap = 0;
    // Nothing is served after a failure, nor does anybody wait for it after an abort.
    const bool polls = must_poll(poll_nap) && !parts_.abort->raised() && !has_fault_.load();
    if (run_once() != 0) {
      was_busy = true;
      continue;
    }
    if (polls && poll_nap == 0) {
      for (uint32_t spin = 0; spin < options_.spin.spins; ++spin) detail::relax();
      continue;
    }
    const bool in_flight = oldest_ != newest_ || must_look();
    const int64_t longest = std::min(options_.idle_sleep_ns, parts_.wire->idle_sleep_ns());
    const int64_t nap = in_flight ? 50'000 : polls ? std::min(longest, poll_nap) : longest;
    // Spins once after work; a pump that has been idle for a whole turn sleeps at once.
    const SpinPolicy spin = was_busy || in_flight ? options_.spin : SpinPolicy{0};
    const WaitContext context{nullptr, Deadline::after(std::chrono::nanoseconds(nap)), spin};
    // Its deadline is the normal end of an idle turn.
    was_busy =
        !wait_until(Stirred{*this, parts_.queues->doorbell.reached(rung + 1)}, {.what = "request"}, context);
  }
  const Deadline drained = Deadline::after(std::chrono::seconds(1));
  while (!is_idle() && !parts_.abort->raised() && !drained.passed()) {
    if (run_once() == 0) detail::blind_sleep(20'000);
  }
}

size_t Pump::take_completions() {
  Completion done[32];
  const size_t count = parts_.wire->poll(done);
  if (const Fault cut = parts_.wire->fault()) {
    fail(cut);
    return count;
  }
  for (size_t i = 0; i < count; ++i) {
    if (done[i].id == 0) continue;  // not ours: something has come in
    for (uint64_t number = oldest_; number != newest_; ++number) {
      Flight& candidate = flight(number);
      if (candidate.transfer.id != done[i].id) continue;
      const bool raising = candidate.state == State::kRaising;
      if (!raising && candidate.state != State::kWriting) break;
      if (done[i].lost) {
        candidate.state = raising ? State::kWritten : State::kNew;
        if (!lost(candidate)) return count;
      } else {
        candidate.state = raising || ordered_ ? State::kEnded : State::kWritten;
      }
      break;
    }
  }
  return count;
}

size_t Pump::take_requests() {
  size_t taken = 0;
  Request request;
  while (newest_ - oldest_ < kFlights && !has_fault_.load(std::memory_order_relaxed)) {
    if (!parts_.queues->ring(Priority::kDecode).try_pop(request)) return taken + take_bulk_piece();
    ++taken;
    if (check(request)) add_flight(request, false, true);
  }
  return taken;
}

// One piece a turn: decode requests are looked at between any two.
size_t Pump::take_bulk_piece() {
  if (bulk_flights_ == kBulkFlights) return 0;
  if (!has_bulk_) {
    if (!parts_.queues->ring(Priority::kBulk).try_pop(bulk_)) return 0;
    if (!check(bulk_)) return 1;
    has_bulk_ = true;
  }
  Request piece = bulk_;
  piece.bytes = static_cast<uint32_t>(std::min<uint64_t>(bulk_.bytes, options_.piece_bytes));
  bulk_.bytes -= piece.bytes;
  bulk_.source_offset += piece.bytes;
  bulk_.target_offset += piece.bytes;
  has_bulk_ = bulk_.bytes != 0;
  add_flight(piece, true, !has_bulk_);
  return 1;
}

bool Pump::check(const Request& request) {
  const uint32_t pair = request.route / 2;
  const auto peer = static_cast<int32_t>(pair / std::max(1u, parts_.channels));
  Fault fault{FaultKind::kBadRequest, {.what = "route of a request", .rank = parts_.rank}};
  fault.seen = request.route;
  fault.needed = parts_.regions.size() * parts_.channels * 2;
  if (request.route >= fault.needed || peer == parts_.rank) {
    fail(fault);
    return false;
  }
  if (request.bytes == 0) return true;
  const RegionTable& here = parts_.regions[parts_.rank];
  const RegionTable& there = parts_.regions[peer];
  const bool good_source = here.find(request.source, request.source_offset, request.bytes) != nullptr;
  if (good_source && there.find(request.target, request.target_offset, request.bytes) != nullptr) return true;
  const RegionTable& table = good_source ? there : here;
  const RegionId id = good_source ? request.target : request.source;
  fault.at.what = good_source ? "target of a request" : "source of a request";
  fault.at.peer = peer;
  fault.seen = id < table.count ? table.regions[id].bytes : 0;
  fault.needed = (good_source ? request.target_offset : request.source_offset) + request.bytes;
  fail(fault);
  return false;
}

void Pump::add_flight(const Request& request, bool is_bulk, bool is_last) {
  Flight& added = flight(newest_++);
  added = Flight{State::kNew, is_bulk, is_last, request.route, 0, Deadline::never(), {}};
  bulk_flights_ += is_bulk;
  // Relaxed: this thread alone has to do with it.
  if (is_last && (request.route & 1) == static_cast<uint16_t>(RouteEnd::kArrived))
    taken(request.route).value.fetch_add(1, std::memory_order_relaxed);
  Transfer& transfer = added.transfer;
  transfer.peer = static_cast<int32_t>(request.route / 2 / parts_.channels);
  transfer.priority = is_bulk ? Priority::kBulk : Priority::kDecode;
  transfer.origin = request.source;
  transfer.target = request.target;
  transfer.target_offset = request.target_offset;
  transfer.bytes = request.bytes;
  if (request.bytes != 0) {
    const RegionTable& here = parts_.regions[parts_.rank];
    transfer.source = here.regions[request.source].base + request.source_offset;
  }
  // The peer counts by its own routes: there the pair is (we, channel).
  const uint32_t channel = request.route / 2 % parts_.channels;
  transfer.counter =
      route_of(parts_.rank, parts_.channels, channel, static_cast<RouteEnd>(request.route & 1));
  transfer.raise_by = ordered_ && is_last ? 1 : 0;
}

size_t Pump::advance_flights() {
  if (oldest_ == newest_) return 0;
  size_t done = 0;
  blocked_.reset();
  // By peer and priority, which keep their order; what waits for room there holds nothing else up.
  std::bitset<Request::kRoutes> busy;
  const auto advance_all = [&](bool is_bulk) {
    for (uint64_t number = oldest_; number != newest_ && !has_fault_.load(std::memory_order_relaxed);
         ++number) {
      Flight& current = flight(number);
      const auto lane = static_cast<size_t>(current.transfer.peer) * kPriorities + is_bulk;
      if (current.state == State::kFree || current.is_bulk != is_bulk || busy[lane]) continue;
      const State before = current.state;
      if (!advance(current)) busy.set(lane);
      done += current.state != before;
      if (current.state != State::kFree) blocked_.set(current.route);
    }
  };
  advance_all(false);
  if (bulk_flights_ != 0) advance_all(true);
  while (oldest_ != newest_ && flight(oldest_).state == State::kFree) ++oldest_;
  return done;
}

// Takes a flight as far as it goes now. False: the wire has no room for it, or a fault.
bool Pump::advance(Flight& flight) {
  if ((flight.state == State::kWriting || flight.state == State::kRaising) && flight.retry_at.passed()) {
    parts_.wire->cancel(flight.transfer.id);
    flight.state = flight.state == State::kRaising ? State::kWritten : State::kNew;
    if (!lost(flight)) return false;
  }
  const bool has_data = flight.transfer.bytes != 0 || ordered_;
  if (flight.state == State::kNew && !has_data) flight.state = State::kWritten;
  if (flight.state == State::kNew) {
    if (!submit(flight, State::kWriting, ordered_ ? State::kEnded : State::kWritten)) return false;
  }
  // An earlier transfer of the channel is still under way: its data must be there before our raise.
  if (blocked_[flight.route]) return true;
  if (flight.state == State::kWritten) {
    if (!flight.is_last) {
      flight.state = State::kEnded;
    } else {
      flight.transfer.bytes = 0;
      flight.transfer.raise_by = 1;
      if (!submit(flight, State::kRaising, State::kEnded)) return false;
    }
  }
  if (flight.state == State::kEnded) retire(flight);
  return true;
}

bool Pump::submit(Flight& flight, State in_flight, State ended) {
  flight.transfer.id = ++serial_;
  switch (parts_.wire->submit(flight.transfer)) {
    case Submitted::kDone:
      flight.state = ended;
      return true;
    case Submitted::kInFlight:
      flight.state = in_flight;
      if (!ordered_)
        flight.retry_at = Deadline::after(options_.retry_after * (1 << std::min(flight.attempts, 6u)));
      return true;
    case Submitted::kLost:
      return lost(flight);
    case Submitted::kBusy:
      return false;
  }
  return false;
}

// Counts a failed attempt. False: it was the last one. An ordered wire retries by itself, before it says
// lost; a retry from here would overtake later transfers.
bool Pump::lost(Flight& flight) {
  if (++flight.attempts < options_.attempts && !ordered_) return true;
  fail({FaultKind::kCut,
        {.what = "attempts of a transfer", .rank = parts_.rank, .peer = flight.transfer.peer},
        flight.attempts,
        options_.attempts});
  return false;
}

void Pump::retire(Flight& flight) {
  // Release, in raise: the wire has read the source before; pairs with Sender::wait_completed.
  if (flight.is_last && (flight.route & 1) == static_cast<uint16_t>(RouteEnd::kArrived)) {
    parts_.completed[flight.route / 2].raise();
  }
  bulk_flights_ -= flight.is_bulk;
  flight.state = State::kFree;
}

void Pump::fail(const Fault& fault) {
  fault_ = fault;
  // Release: publishes fault_; pairs with fault(). Then everything that waits is woken.
  has_fault_.store(true, std::memory_order_release);
  parts_.abort->raise(AbortReason::kFault, parts_.rank);
}

}  // namespace ark::dma
