// The pump: the engine of a rank's posted links. Turns requests of the rings into transfers of a wire.
//
// It cuts bulk requests into pieces so that a decode request never waits behind more than one of them,
// keeps many transfers in flight, raises a channel's counter only when all its earlier transfers have taken
// effect, retries what an unordered wire loses, and checks each request against the regions (a ring may be
// filled by a device): a bad request becomes a fault, never a wild write.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "dma/reduce_on_arrival.h"
#include "dma/transport.h"

namespace ark::dma {

struct PumpOptions {
  uint64_t piece_bytes = 128 << 10;  // largest bulk transfer
  // Per transfer, before the wire counts as cut: 2.5 s with the next figure.
  uint32_t attempts = 7;
  std::chrono::nanoseconds retry_after{20'000'000};  // doubled at each attempt; unordered wires only
  // Small where producers neither raise the doorbell nor are announced by poll_while().
  int64_t idle_sleep_ns = detail::kSleepSliceNs;
  SpinPolicy spin;  // before an idle pump sleeps
};

class Pump {
 public:
  // What a rank's pump works on. All owned by the endpoint; outlives the pump.
  struct Parts {
    int rank = 0;
    uint32_t channels = 0;
    std::vector<RegionTable> regions;  // by rank; the own rank's are the sources
    RequestQueues* queues = nullptr;
    Counter64* completed = nullptr;  // by channel route / 2
    Wire* wire = nullptr;
    AbortFlag* abort = nullptr;
  };

  Pump(const Parts& parts, const PumpOptions& options);
  ~Pump() { stop(); }
  Pump(const Pump&) = delete;
  Pump& operator=(const Pump&) = delete;

  // One turn without waiting: takes completions, takes requests, submits. Returns how many things it did.
  // Only while no thread runs.
  size_t run_once();
  bool is_idle() const;

  // For producers that cannot raise the doorbell (a GPU): while `may_post` is true the pump looks again and
  // again, asleep for `nap_ns` between two looks (0: not at all). Who makes it true raises the doorbell
  // afterwards. Called from the pump's thread; it must be true until what was posted can be seen. Null ends
  // it: returns when the function is no longer in use. Any thread.
  void poll_while(std::function<bool()> may_post, int64_t nap_ns);

  // Requests that the pump has taken, of each channel: so many puts, commits and signals. For its own thread.
  Counter64& taken(RouteId route) { return taken_[route / 2]; }

  // Sums that the pump shall look after; null ends it: returns when they are no longer in use. Of one owner at a time.
  void look_after(ArrivalSums* sums);

  void start();
  // Finishes what was posted before (for at most a second, and only if nothing has aborted), then ends.
  void stop();

  // Why the pump gave up, if it did; it has then raised the abort word. Any thread.
  Fault fault() const { return has_fault_.load(std::memory_order_acquire) ? fault_ : Fault{}; }

 private:
  enum class State : uint8_t { kFree, kNew, kWriting, kWritten, kRaising, kEnded };
  struct Flight {
    State state = State::kFree;
    bool is_bulk = false;
    bool is_last = false;  // piece of its request: raises, and counts as completed
    RouteId route = 0;
    uint32_t attempts = 0;
    Deadline retry_at = Deadline::never();
    Transfer transfer;  // its data; the raise too on ordered wires
  };
  static constexpr uint64_t kFlights = 256;
  static constexpr uint32_t kBulkFlights = 16;  // leaves room for decode transfers

  struct Stirred;
  void run(std::stop_token stop);
  bool must_poll(int64_t& nap_ns);
  bool has_time() const;
  size_t add_arrivals();
  bool must_look();
  size_t take_completions();
  size_t take_requests();
  size_t take_bulk_piece();
  size_t advance_flights();
  bool advance(Flight& flight);
  bool submit(Flight& flight, State in_flight, State ended);
  bool lost(Flight& flight);
  void retire(Flight& flight);
  bool check(const Request& request);
  void add_flight(const Request& request, bool is_bulk, bool is_last);
  void fail(const Fault& fault);
  Flight& flight(uint64_t number) { return flights_[number % kFlights]; }

  const Parts parts_;
  const PumpOptions options_;
  const bool ordered_;
  std::array<Flight, kFlights> flights_;
  uint64_t oldest_ = 0;  // flights [oldest_, newest_) are in use or free again out of turn
  uint64_t newest_ = 0;
  uint64_t serial_ = 0;  // of submissions
  uint32_t bulk_flights_ = 0;
  Request bulk_;  // what is left of the bulk request being cut; none if has_bulk_ is false
  bool has_bulk_ = false;
  std::unique_ptr<Counter64[]> taken_;     // by channel route / 2
  std::bitset<Request::kRoutes> blocked_;  // routes with an unended earlier flight, during one advance

  std::atomic<ArrivalSums*> sums_{nullptr};
  std::atomic<bool> uses_sums_{false};

  std::mutex polling_;  // guards the next two
  std::function<bool()> may_post_;
  int64_t poll_nap_ns_ = 0;

  Fault fault_;
  std::atomic<bool> has_fault_{false};
  std::jthread thread_;
};

}  // namespace ark::dma
