// The data path of transport `ucx`: an ordered wire of active messages.
#pragma once

#include <memory>
#include <vector>

#include "dma/transport.h"
#include "dma/ucx/frame.h"
#include "dma/ucx/handles.h"

namespace ark::dma {

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
