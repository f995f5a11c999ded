// The two ends of a channel, as the processors of a rank use them: plain handles, the same calls for direct
// and for posted links.
//
//   sender                                          receiver
//   acquire(m)         waits for a free inbox slot
//   slot(m)            where to write the bytes      wait(arrivals)   until they are there
//   commit(m, ...)     one arrival                   slot(m)          where to read them
//                                                    release()        returns the credit of one message
//
// Several processors may fill one message: each commits its part once (also an empty part), and the
// receiver waits for the sum of all commits so far. A sum does not tell who contributed, so no processor may
// commit to message m + 1 before all have committed to m (phase counters give that; see the all-reduce test).
// Message numbers start at 0 on both sides. What both sides know to be read already (double buffering by step
// parity) needs no acquire; the validator proves it. Handles are trivially copyable and may be used by all
// processors of the rank at the same time. They point into their endpoint and must not outlive it.
#pragma once

#include <cstring>
#include <type_traits>

#include "dma/transport.h"

namespace ark::dma {

struct Sender {
  Link link = Link::kDirect;
  Priority priority = Priority::kDecode;
  RouteId route = 0;  // of our arrivals
  int32_t rank = -1;
  int32_t peer = -1;
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
  uint64_t first_count = 0;        // where the counters started
  bool on_device = false;          // slots are in memory of the device, and slot() is an address of it
  std::byte* slot_base = nullptr;  // direct: in the peer's inbox; posted: our outbox
  uint64_t inbox_offset = 0;       // of slot 0 in the peer's inbox region
  uint64_t outbox_offset = 0;      // of slot 0 in our outbox region
  RegionId inbox = 0;
  RegionId outbox = 0;
  RegionTable here;                // our regions
  RegionTable there;               // the peer's
  Counter64* arrived = nullptr;    // the receiver's memory; null on posted links
  Counter64* credit = nullptr;     // our memory; raised by the receiver
  Counter64* completed = nullptr;  // our memory; raised by our pump, unused on direct links
  RequestQueues* queues = nullptr;

  // Waits until message `message` may be written: the receiver has released message - slots, by
  // `releases` calls per message (its number of processors, if each returns a credit of its own).
  Fault acquire(uint64_t message, const WaitContext& context, uint64_t releases = 1) const {
    // Modulo 2^64: for the first `slots` messages this lies before first_count, which has been reached.
    const uint64_t needed = first_count + (message + 1 - slots) * releases;
    return wait_reached(*credit, needed, at("credit of an inbox slot"), context);
  }

  // slot_bytes bytes to write the message to; cache-line aligned.
  std::byte* slot(uint64_t message) const { return slot_base + message % slots * slot_bytes; }

  // Publishes `bytes` at `offset` of the message's slot (both multiples of 4 on posted links) as one arrival.
  Fault commit(uint64_t message, uint64_t offset, uint64_t bytes, const WaitContext& context) const {
    if (link == Link::kDirect) {
      arrived->raise();  // release: publishes our stores into the slot; pairs with Receiver::wait
      return {};
    }
    const uint64_t start = message % slots * slot_bytes + offset;
    return put(outbox, outbox_offset + start, inbox, inbox_offset + start, bytes, context);
  }

  // Copies bytes of a region of ours into a region of the peer, then raises its arrival counter by one.
  // The source may be reused when wait_completed() says so; at once on direct links.
  Fault put(RegionId source, uint64_t source_offset, RegionId target, uint64_t target_offset, uint64_t bytes,
            const WaitContext& context) const;

  // An arrival without data.
  Fault signal(const WaitContext& context) const {
    if (link == Link::kPosted)
      return queues->post(priority, {route}, at("room in the request ring"), context);
    arrived->raise();
    return {};
  }

  // Waits until the first `puts` puts, commits and signals of this channel have taken effect.
  Fault wait_completed(uint64_t puts, const WaitContext& context) const {
    if (link == Link::kDirect) return {};
    return wait_reached(*completed, first_count + puts, at("completion of a transfer"), context);
  }

  // The peer's memory, for stores of our own before signal(). Null on posted links and outside the region.
  std::byte* address(RegionId target, uint64_t offset, uint64_t bytes) const {
    const Region* region = link == Link::kDirect ? there.find(target, offset, bytes) : nullptr;
    return region == nullptr ? nullptr : region->base + offset;
  }

  WaitPoint at(const char* what) const { return {.what = what, .rank = rank, .peer = peer}; }
};
static_assert(std::is_trivially_copyable_v<Sender>);

struct Receiver {
  Link link = Link::kDirect;
  Priority priority = Priority::kDecode;
  RouteId route = 0;  // of the credits that we return
  int32_t rank = -1;
  int32_t peer = -1;
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;
  uint64_t first_count = 0;
  bool on_device = false;                // as Sender's
  const std::byte* slot_base = nullptr;  // our inbox for this peer
  Counter64* arrived = nullptr;          // our memory; raised by the sender
  Counter64* credit = nullptr;           // the sender's memory; null on posted links
  RequestQueues* queues = nullptr;

  // Waits for the first `arrivals` arrivals of this channel since the start.
  Fault wait(uint64_t arrivals, const WaitContext& context) const {
    // Acquire, in Counter::load: pairs with the sender's raise; the data may be read afterwards.
    return wait_reached(*arrived, first_count + arrivals, at("arrival"), context);
  }
  bool has_arrived(uint64_t arrivals) const { return arrived->has_reached(first_count + arrivals); }

  const std::byte* slot(uint64_t message) const { return slot_base + message % slots * slot_bytes; }

  // The oldest unreleased message is read (by this processor): the sender may overwrite its slot.
  Fault release(const WaitContext& context) const {
    if (link == Link::kPosted)
      return queues->post(priority, {route}, at("room in the request ring"), context);
    credit->raise();  // release: our reads of the slot come before; pairs with Sender::acquire
    return {};
  }

  WaitPoint at(const char* what) const { return {.what = what, .rank = rank, .peer = peer}; }
};
static_assert(std::is_trivially_copyable_v<Receiver>);

inline Fault Sender::put(RegionId source, uint64_t source_offset, RegionId target, uint64_t target_offset,
                         uint64_t bytes, const WaitContext& context) const {
  const Region* from = here.find(source, source_offset, bytes);
  const Region* to = there.find(target, target_offset, bytes);
  if (from == nullptr || to == nullptr) {
    const bool mine = from == nullptr;
    const RegionTable& table = mine ? here : there;
    const RegionId id = mine ? source : target;
    return {FaultKind::kBadRequest, at(mine ? "source of a put" : "target of a put"),
            id < table.count ? table.regions[id].bytes : 0, (mine ? source_offset : target_offset) + bytes};
  }
  if (link == Link::kDirect) {
    if (bytes != 0) std::memcpy(to->base + target_offset, from->base + source_offset, bytes);
    arrived->raise();  // release: publishes the copy; pairs with Receiver::wait
    return {};
  }
  const Request request{route, source, target, source_offset, target_offset, static_cast<uint32_t>(bytes)};
  if (request.bytes != bytes || !request.is_packable()) {
    return {FaultKind::kBadRequest, at("put beyond the request format (4-byte offsets < 16 GiB, < 4 GiB)"),
            bytes, UINT32_MAX};
  }
  return queues->post(priority, request, at("room in the request ring"), context);
}

}  // namespace ark::dma
