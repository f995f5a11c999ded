// Queue pairs: made, connected to a peer's, and proven before anybody relies on them.
#pragma once

#include "dma/verbs/hello.h"
#include "dma/verbs/wire.h"

namespace ark::dma {

// By which a device sends to a port.
ibv_ah_attr way_to(const VerbsPort& from, const VerbsAddress& there);

// All throw Error(kUnavailable), with the port and the peer where one is at fault.

// Completion queue and queue pairs to all peers that the wire carries to, with their receives posted. Takes
// `parts` with a port, and leaves to connect_queues what links need of a peer. The result lacks told_key.
VerbsHello make_queues(VerbsParts& parts, const WireMap& map, int ranks);

void connect_queues(VerbsParts& parts, int rank, const VerbsHello& ours, int peer, const VerbsHello& theirs);

// A transfer of no bytes to each peer: a network that does not lead there is found now, not by the first step.
void prove_queues(VerbsParts& parts, Deadline deadline);

}  // namespace ark::dma
