// The contract between the DMA layer and what carries its bytes.
//
// A transport has two halves. Setup (Transport): memory that it can register, described to the peers by a
// blob, attached by them. Data path (Wire): takes transfers from the pump and reports their end. Everything
// else -- rings, credits, priorities, order, retries, bounds -- is written once, above this header.
//
// To add a transport: one folder with a set-up and a data path, and a row in transports.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dma/bootstrap.h"
#include "dma/counter.h"
#include "dma/region.h"
#include "dma/ring.h"

namespace ark::dma {

enum class Link : uint8_t {
  kDirect,  // the processor itself stores into the peer's memory and raises the peer's counter
  kPosted,  // the processor posts a request; the rank's pump moves the bytes and raises the counter
};

// One kind of channel; each ordered pair of ranks gets one of every kind. Equal on all ranks.
struct ChannelSpec {
  std::string name;
  Priority priority = Priority::kDecode;
  uint32_t slots = 2;  // messages that may be in flight before the receiver returns a credit
  // Of an inbox slot; rounded up to 64; 0: a channel without inboxes (put and signal only).
  uint64_t slot_bytes = 0;
  bool by_devices = false;  // its ends are devices: boxes may lie in their memory (EndpointSpec::device)
};

// Per (peer, channel) a rank has two counters that the peer raises; both lie in the rank's control region,
// indexed by route, as do the rank's own `completed` counters behind them.
enum class RouteEnd : uint8_t {
  kArrived,  // in the receiver's memory: transfers that the peer has sent us
  kCredit,   // in the sender's memory: messages that the peer has consumed
};

inline uint32_t route_of(int peer, uint32_t channels, uint32_t channel, RouteEnd end) {
  return (static_cast<uint32_t>(peer) * channels + channel) * 2 + static_cast<uint32_t>(end);
}

// A write into a peer's region and/or a raise of one of its counters, as the pump hands it to a wire.
// `source` stays valid until the transfer has ended.
struct Transfer {
  uint64_t id = 0;  // the pump's; unique per submission, never 0
  int32_t peer = 0;
  Priority priority = Priority::kDecode;  // the same for all transfers of a channel
  RegionId origin = 0;                    // our region that `source` lies in
  RegionId target = 0;
  const std::byte* source = nullptr;
  uint64_t target_offset = 0;
  uint64_t bytes = 0;
  uint32_t counter = 0;   // route index at the peer
  uint64_t raise_by = 0;  // 0: data only. The raise takes effect after this transfer's data.
};

enum class Submitted : uint8_t {
  kDone,      // has taken effect, or (ordered wires) will before any later one; the source may be reused
  kInFlight,  // poll() will report its end
  kBusy,      // not taken: try again after poll()
  kLost,      // not taken and had no effect: may be retried
};

struct Completion {
  uint64_t id = 0;
  bool lost = false;  // had no effect: may be retried
};

// The data path of one rank; used by its pump only, from one thread. Never throws, never blocks.
class Wire {
 public:
  virtual ~Wire() = default;

  // True: transfers to one peer with one priority take effect in the order of submission, and none is ever lost
  // silently (RDMA RC, TCP, shared memory). The pump then submits data and raise as one transfer and sets no timers.
  virtual bool is_ordered() const = 0;

  virtual Submitted submit(const Transfer& transfer) = 0;

  // Fills `done` with ended transfers, returns how many. Also serves what peers send us, where receiving
  // takes work of the host (TCP, WRITE_WITH_IMM); that may be told with id 0, so that the pump stays awake.
  virtual size_t poll(std::span<Completion> done) = 0;

  // After this the transfer never takes effect (if it has not yet). Only unordered wires are asked.
  virtual void cancel(uint64_t id) = 0;

  // How long the pump may sleep while it has nothing to send. Wires that must poll() for what comes in
  // return a small figure.
  virtual int64_t idle_sleep_ns() const { return detail::kSleepSliceNs; }

  // Whether what `peer` sends is counted here by poll() alone, and not by the peer's own stores.
  virtual bool counts_arrivals(int /*peer*/) const { return false; }

  // False while bytes of ended transfers still lie here: the pump polls on before it ends.
  virtual bool is_drained() const { return true; }
  // Why the wire can carry nothing more, such as a connection that was cut; it names the peer.
  virtual Fault fault() const { return {}; }
};

// What a wire can reach. memory[rank][region]; own rank included; `counters[rank]` is null where that
// rank's control region is not addressable from here. Owned by the endpoint, outlives the wire.
struct WireMap {
  int rank = 0;
  uint32_t channels = 0;  // of the endpoint: what route_of() counts by
  std::vector<std::vector<Memory>> memory;
  std::vector<Counter64*> counters;
  std::vector<bool> carries = {};  // by rank: to whom this wire carries; empty: to all others
  // By route / 2 of arrivals: they are of data in memory of a device, which sees it when settle() has returned true
  // (null: no later than any counter that is raised for it).
  std::vector<bool> on_device = {};
  std::function<bool()> settle = {};

  bool carries_to(int peer) const { return peer != rank && (carries.empty() || carries[peer]); }
  // What a peer may ask of the receiver. The last region of a rank holds its counters: these are raised, never written.
  bool may_write(uint64_t target, uint64_t offset, uint64_t bytes) const {
    const std::vector<Memory>& own = memory[rank];
    return bytes == 0 || (target + 1 < own.size() && own[target].region.contains(offset, bytes));
  }
  // Counters are the peer's whose routes they have.
  bool may_raise(int peer, uint32_t route) const {
    const uint32_t first = route_of(peer, channels, 0, RouteEnd::kArrived);
    return route >= first && route - first < channels * 2;
  }
};

// The setup half; one object per rank. May throw Error.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  // Of what carries to one peer, once its memory is attached.
  virtual std::string_view name_to(int /*peer*/) const { return name(); }

  // Zero-filled memory that peers can be given access to.
  virtual Memory allocate(const std::string& name, uint64_t bytes) = 0;
  // Registers memory of another owner. Throws Error(kUnsupported) where that cannot be.
  virtual Memory adopt(const std::string& name, void* base, uint64_t bytes) = 0;
  // Whether adopt_named() is more than a refusal.
  virtual bool takes_named() const { return false; }
  // Registers memory of a device by its descriptor, which it only borrows. Throws Error(kUnsupported) where that cannot
  // be. Only transfers go there: of `region` it takes the size, and the address as the one that they are given.
  virtual Memory adopt_named(const std::string& name, const NamedMemory& memory);
  // Of counters: peers need access only where they raise them by their own stores (direct links).
  virtual Memory allocate_counters(uint64_t bytes) { return allocate("counters", bytes); }

  // What a peer needs in order to reach `memory`.
  virtual std::string describe(const Memory& memory) = 0;
  // `bytes` is the size that the peer announced. The description comes from outside: checked, and refused
  // with an Error that names the peer. region.base is null where the peer's memory is not addressable.
  virtual Memory attach(int peer, std::string_view description, uint64_t bytes) = 0;
  // All ranks have attached everything: names and descriptors may go.
  virtual void connected() = 0;

  // Called once, after all is attached. `bootstrap` is for addresses of the transport's own. An error of one
  // rank's must not leave the others waiting beyond `deadline`.
  virtual std::unique_ptr<Wire> open_wire(const WireMap& map, Bootstrap& bootstrap, Deadline deadline) = 0;
};

// Of transports whose receiver places what arrives: peers name its memory by region and offset alone.
class NumberedMemoryTransport : public Transport {
 public:
  Memory allocate(const std::string& name, uint64_t bytes) override { return allocate_private(bytes, name); }
  Memory adopt(const std::string&, void* base, uint64_t bytes) override {
    return {{static_cast<std::byte*>(base), bytes}, 0, nullptr};
  }
  std::string describe(const Memory&) override { return {}; }
  Memory attach(int, std::string_view, uint64_t bytes) override { return {{nullptr, bytes}, 0, nullptr}; }
  void connected() override {}
};

}  // namespace ark::dma
