// The data path of transport `ucx`: an ordered wire of active messages.
#pragma once

#include <memory>
#include <vector>

#include "dma/transport.h"
#include "dma/ucx/handles.h"

namespace ark::dma {

// The header of each message; the payload is its data. Little-endian, as in memory.
struct UcxFrame {
  uint64_t secret = 0;  // the receiver's for this sender: who does not know it is not heard
  // Of this sender's messages of this priority, from 0; raises take effect in this order.
  uint64_t number = 0;
  uint64_t target_offset = 0;
  uint64_t bytes = 0;
  uint64_t raise_by = 0;
  uint32_t counter = 0;  // route at the receiver; unused where raise_by is 0
  uint16_t target = 0;   // region of the receiver; unused where bytes is 0
  uint16_t sender = 0;   // rank
  uint16_t priority = 0;
  uint16_t kind = 0;
  uint32_t unused = 0;

  enum Kind : uint16_t {
    kHello = 1,  // the first of each priority: proves the way
    kTransfer = 2,
    kLeaving = 3,   // the last of the sender, which goes in good order
    kFarewell = 4,  // the answer to kLeaving: all before it has arrived
  };
};
static_assert(sizeof(UcxFrame) == 56);

// What ranks tell each other; by rank.
struct UcxPeer {
  std::string address;        // of its worker
  uint64_t our_secret = 0;    // that it knows us by
  uint64_t their_secret = 0;  // that we know it by
};

// Connects, and proves each way by a message; blocks until all have arrived. Throws Error(kUnavailable) that names a
// peer from which nothing came by `deadline`. A peer may write into the regions of the spec and the boxes, and raise
// the counters that are for it; a message that asks for more is a fault (kBadRequest), as is a peer that goes without
// kLeaving (kCut).
std::unique_ptr<Wire> make_ucx_wire(const WireMap& map, std::unique_ptr<UcxWorker> worker,
                                    std::vector<UcxPeer> peers, Deadline deadline);

}  // namespace ark::dma
