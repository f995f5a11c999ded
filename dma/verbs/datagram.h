// What transport `verbs-ud` sends, and which of it a receiver takes. Knows nothing of libibverbs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dma/transport.h"

namespace ark::dma {

// The head of each datagram; its payload follows. Little-endian, as in memory.
struct Datagram {
  uint64_t secret = 0;  // the receiver's for this sender: who does not know it is not heard
  uint64_t target_offset = 0;
  int64_t sent_at = 0;    // the sender's clock in nanoseconds; grows with each datagram of a session
  int64_t echo = 0;       // `sent_at` of the newest that its sender has got from the receiver; 0: of none
  uint32_t number = 0;    // of those that are acknowledged, modulo 2^32
  uint32_t awaited = 0;   // the number that its sender awaits: all before it have arrived there
  uint32_t raise_by = 0;  // by the last datagram of a transfer
  uint16_t bytes = 0;     // of the payload
  uint16_t counter = 0;   // route at the receiver; unused where raise_by is 0
  uint16_t target = 0;    // region of the receiver; unused where bytes is 0
  uint16_t sender = 0;    // rank
  uint8_t priority = 0;
  uint8_t kind = 0;
  uint16_t unused = 0;

  enum Kind : uint8_t {
    kHello = 1,     // at set-up: proves the way
    kTransfer = 2,  // a piece of a transfer; has a number
    kLeaving = 3,   // the last of the sender, which goes in good order; has a number
    kTaken = 4,     // an acknowledgement alone
    kGap = 5,       // likewise, of one who has got a later number than it awaits
  };
  bool has_number() const { return kind == kTransfer || kind == kLeaving; }
};
static_assert(sizeof(Datagram) == 56);

// Whether rank map.rank may take it from rank `peer`, with so much payload: it fits a region, and raises what is the
// peer's.
inline bool allows(const WireMap& map, const Datagram& head, int peer, Priority priority, size_t bytes) {
  if (head.kind < Datagram::kHello || head.kind > Datagram::kGap || head.bytes != bytes) return false;
  if (head.sender != peer || head.priority != static_cast<uint8_t>(priority)) return false;
  if (head.kind != Datagram::kTransfer) return bytes == 0 && head.raise_by == 0;
  return map.may_write(head.target, head.target_offset, bytes) &&
         (head.raise_by == 0 || map.may_raise(peer, head.counter));
}

}  // namespace ark::dma
