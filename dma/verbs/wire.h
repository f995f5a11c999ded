// The data path of transport `verbs`: an ordered wire over reliable queue pairs.
#pragma once

#include <memory>
#include <vector>

#include "dma/transport.h"
#include "dma/verbs/device.h"
#include "dma/verbs/registering.h"

namespace ark::dma {

// One queue pair: what goes to one peer with one priority, and what comes from there. Connected, with `depth` receives
// posted at either end.
struct VerbsLink {
  QueuePair pair;            // null for the rank itself
  ibv_gid gid = {};          // of the peer's port
  uint32_t most_inline = 0;  // bytes that the device takes with the request
  uint32_t their_depth = 0;  // receives that the peer has posted
  uint64_t told_at = 0;      // where in the peer's memory our count of reposted receives goes
  uint32_t told_key = 0;
};

// What the set-up leaves to the wire; goes in the reverse order.
struct VerbsParts {
  std::shared_ptr<const VerbsPort> port;
  // Counts of receives, 32 bits each, by link_index: first as the peers write them, then as we send them.
  Memory told;
  CompletionQueue completions;   // room for all that the links can have outstanding
  uint32_t depth = 0;            // of each send queue and of each receive queue
  std::vector<VerbsLink> links;  // by link_index
};

// What receives of a link are called in their completions.
inline uint64_t receive_name(size_t link) { return uint64_t{link} << 33 | uint64_t{1} << 32; }

// `map`: keys are VerbsKeys, local ones of own memory and remote ones of peers'.
std::unique_ptr<Wire> make_verbs_wire(const WireMap& map, VerbsParts parts);

}  // namespace ark::dma
