// Posting into a ring of requests (dma/ring.h) from a device.
//
// The ring lies in memory of the host; what producers need to agree on lies in the device's own
// (RingTickets), so that a request is two stores over the bus and nothing that comes back. Writers: slots -
// the producers; `consumed` - the host's pump alone. The ring's own `tail` is unused; the host does not post
// on such a ring.
#pragma once

#include "dma/device.h"
#include "dma/request_layout.h"
#include "engine/cuda/image.h"

namespace ark::cuda {

namespace dev = ark::dev;

// One thread. `head`: first word without its commit bit; `offsets`: the second word. await(counter, needed)
// waits until the host's counter has reached `needed` and returns false to give up. Release: publishes the
// request, and what the caller wrote or knows of before.
template <class Await>
ARK_DEVICE bool post(u64 ring, u64 tickets, u64 head, u64 offsets, Await await) {
  RingTickets* own = reinterpret_cast<RingTickets*>(tickets);
  const u64* consumed = reinterpret_cast<const u64*>(ring + dma::kRingConsumedOffset);
  const u64 ticket = dev::atom_add<dev::Scope::gpu>(&own->next, u64{1});
  // The consumer must have read the slot that this ticket overwrites. Acquire: whoever stored the figure had
  // acquired it from the consumer. The host's counter is only looked at when the last look was long ago.
  if (!ARK_BUG(ring_overrun) &&
      ticket - dev::ld_acquire<dev::Scope::gpu>(&own->consumed) >= dma::kRingSlots) {
    if (!await(consumed, ticket + 1 - dma::kRingSlots)) return false;
    // Acquire, of the consumer's raise. Of two that store here the later may know less: that costs a look.
    const u64 seen = dev::ld_acquire<dev::Scope::sys>(consumed);
    dev::st_release<dev::Scope::gpu>(&own->consumed, seen);
  }
  u64* slot = reinterpret_cast<u64*>(ring + dma::kRingSlotsOffset) + ticket % dma::kRingSlots * 2;
  if (ARK_BUG(early_fence)) dev::fence<dev::Scope::sys>();
  dev::st_relaxed<dev::Scope::sys>(slot + 1, offsets);
  const u64 parity = (ticket / dma::kRingSlots + !ARK_BUG(wrong_lap)) & 1;
  if (ARK_BUG(relaxed_request) || ARK_BUG(early_fence)) {
    dev::st_relaxed<dev::Scope::sys>(slot, parity | head);
  } else {
    dev::st_release<dev::Scope::sys>(slot, parity | head);
  }
  return true;
}

}  // namespace ark::cuda
