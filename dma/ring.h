// The request ring between the processors of a rank (any number of producers: CPU threads, or the blocks of
// one GPU, never both) and its pump (the one consumer).
//
// A request is 16 bytes. Its commit bit is the parity of the lap over the ring, so nothing is cleared
// between laps and the consumer never reads a half-written request. Layout: docs/dma.md.
#pragma once

#include <atomic>
#include <cstdint>

#include "dma/counter.h"
#include "dma/region.h"
#include "dma/request_layout.h"

namespace ark::dma {

// A route is a channel's counter at one peer: see route_of() in transport.h.
using RouteId = uint16_t;

struct Request {
  RouteId route = 0;           // < 2048
  RegionId source = 0;         // region of this rank, < 1024
  RegionId target = 0;         // region of the peer, < 1024
  uint64_t source_offset = 0;  // bytes, multiple of 4, < 16 GiB
  uint64_t target_offset = 0;
  uint32_t bytes = 0;  // 0: no data, only the raise of the route's counter

  static constexpr uint32_t kRoutes = 1 << kRouteBits;
  static constexpr uint32_t kRegions = 1 << kSourceBits;
  static constexpr uint64_t kOffsetUnit = dma::kOffsetUnit;
  static_assert(kSourceBits == kTargetBits);
  static constexpr uint64_t kOffsetLimit = kOffsetUnit << 32;

  // The first word in the ring, without commit bit and length.
  uint64_t head() const {
    return uint64_t{route} << kRouteShift | uint64_t{source} << kSourceShift |
           uint64_t{target} << kTargetShift;
  }
  // Whether the fields fit their bits.
  bool is_packable() const {
    const uint64_t both = source_offset | target_offset;
    return route < kRoutes && source < kRegions && target < kRegions && both % kOffsetUnit == 0 &&
           source_offset < kOffsetLimit && target_offset < kOffsetLimit;
  }
};

// Zero-filled memory is a valid empty ring: the first lap commits with parity 1.
class Ring {
 public:
  static constexpr uint64_t kSlots = kRingSlots;

  // False if the ring is full. Any thread. `request` must be packable.
  bool try_push(const Request& request) {
    uint64_t ticket = tail_.load(std::memory_order_relaxed);
    do {
      // Acquire on consumed_ pairs with the raise in try_pop: the consumer has read the slot that this
      // ticket overwrites before we write it. Signed: a stale ticket may lie behind, then the CAS fails.
      if (static_cast<int64_t>(ticket - consumed_.load()) >= static_cast<int64_t>(kSlots)) return false;
      // Relaxed: the ticket only makes the slot ours; the commit bit publishes it.
    } while (!tail_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_relaxed));
    Slot& slot = slots_[ticket % kSlots];
    slot.offsets.store(
        request.source_offset / kOffsetUnit | request.target_offset / kOffsetUnit << kTargetOffsetShift,
        std::memory_order_relaxed);
    // Release: publishes `offsets` and all that the producer wrote into the source region before.
    // Pairs with the acquire in try_pop.
    slot.head.store(parity(ticket) | request.head() | uint64_t{request.bytes} << kBytesShift,
                    std::memory_order_release);
    return true;
  }

  // From now on a device alone posts here, with tickets of its own: atomic operations of the host and of a
  // device on one word are not atomic to each other over PCIe, so a ring has producers of one kind. A host
  // that tries to post finds the ring full for ever. False, and nothing has changed, if it has posted before.
  // Before any other use.
  bool close_to_host() {
    uint64_t none = 0;
    return tail_.compare_exchange_strong(none, uint64_t{1} << 62, std::memory_order_relaxed);
  }

  // Waits while the ring is full.
  Fault push(const Request& request, const WaitPoint& at, const WaitContext& context) {
    while (!try_push(request)) {
      const uint64_t room_for = tail_.load(std::memory_order_relaxed) + 1 - kSlots;
      if (Fault fault = wait_reached(consumed_, room_for, at, context)) return fault;
    }
    return {};
  }

  // The consumer only. False if the next slot is not committed yet.
  bool try_pop(Request& request) {
    const uint64_t turn = next_;
    Slot& slot = slots_[turn % kSlots];
    // Acquire: pairs with the release in try_push.
    const uint64_t head = slot.head.load(std::memory_order_acquire);
    if ((head & 1) != parity(turn)) return false;
    const uint64_t offsets = slot.offsets.load(std::memory_order_relaxed);
    request.route = head >> kRouteShift & (Request::kRoutes - 1);
    request.source = head >> kSourceShift & (Request::kRegions - 1);
    request.target = head >> kTargetShift & (Request::kRegions - 1);
    request.bytes = static_cast<uint32_t>(head >> kBytesShift);
    request.source_offset = (offsets & 0xffffffff) * kOffsetUnit;
    request.target_offset = (offsets >> kTargetOffsetShift) * kOffsetUnit;
    next_ = turn + 1;
    consumed_.raise();  // release: the slot is read, a producer may overwrite it
    return true;
  }

  // The consumer only.
  bool is_empty() const {
    return (slots_[next_ % kSlots].head.load(std::memory_order_acquire) & 1) != parity(next_);
  }

 private:
  struct Slot {
    std::atomic<uint64_t> head;     // commit bit, route, regions, length
    std::atomic<uint64_t> offsets;  // source and target
  };
  static_assert(sizeof(Slot) == kRequestBytes);

  static uint64_t parity(uint64_t ticket) { return (ticket / kSlots + 1) & 1; }

  alignas(64) std::atomic<uint64_t> tail_{0};  // next ticket; producers
  alignas(64) uint64_t next_ = 0;              // the consumer's own position
  Counter64 consumed_;                         // requests taken out; the producers wait on it
  alignas(64) Slot slots_[kSlots] = {};
};
static_assert(sizeof(Ring) == kRingSlotsOffset + Ring::kSlots * kRequestBytes);

enum class Priority : uint8_t { kDecode, kBulk };  // the pump serves kDecode first, also between bulk pieces
inline constexpr int kPriorities = 2;

// All requests of a rank to its pump. Zero-filled memory is valid.
struct RequestQueues {
  Ring rings[kPriorities];
  // Raised after each request; an idle pump sleeps on it. A device that cannot wake may leave it alone if
  // Pump::poll_while() says when it may post.
  Counter32 doorbell;

  Ring& ring(Priority priority) { return rings[static_cast<int>(priority)]; }
  // Waits while the ring is full.
  Fault post(Priority priority, const Request& request, const WaitPoint& at, const WaitContext& context) {
    if (Fault fault = ring(priority).push(request, at, context)) return fault;
    doorbell.raise();
    return {};
  }
};

}  // namespace ark::dma
