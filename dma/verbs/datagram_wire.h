// The data path of transport `verbs-ud`: an ordered wire over two queue pairs, whoever and however many the peers are.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dma/transport.h"
#include "dma/verbs/datagram.h"
#include "dma/verbs/device.h"
#include "dma/verbs/hello.h"
#include "dma/verbs/registering.h"

namespace ark::dma {

// What a device puts before a received datagram: the global route, or as much that is undefined.
inline constexpr uint32_t kRouteHead = 40;

// All that goes and comes with one priority; goes in the reverse order.
struct DatagramQueue {
  Memory heads;     // of the sends that are posted, by send % depth
  Memory arrivals;  // `stride` bytes a receive
  CompletionQueue sent, received;
  QueuePair pair;
  uint32_t depth = 0;     // sends that may be posted
  uint32_t receives = 0;  // that are posted
};

struct DatagramPeer {
  AddressHandle way;  // null for the rank itself
  ibv_gid gid = {};
  std::array<uint32_t, kPriorities> queues = {};  // numbers of its queue pairs
  uint32_t key = 0;                               // of these
  uint32_t window = 0;                            // datagrams that it has receives for
  uint64_t our_secret = 0;                        // that it knows us by
  uint64_t their_secret = 0;                      // that we know it by
};

// What the set-up leaves to the wire; goes in the reverse order.
struct DatagramParts {
  std::shared_ptr<const VerbsPort> port;
  uint32_t most_inline = 0;  // bytes that the device takes with the request
  uint32_t payload = 0;      // most bytes of a datagram, behind its head
  uint32_t stride = 0;
  std::array<DatagramQueue, kPriorities> queues;
  std::vector<DatagramPeer> peers;  // by rank

  static Priority priority(size_t queue) { return static_cast<Priority>(queue); }
};

// "rank 1 at ::ffff:10.9.0.2 from rxe1 port 1, ..."
std::string path(const DatagramParts& parts, int peer);

// A datagram of a peer's that did not find its receive is only late; one that is bad is a fault (kBadRequest), a peer
// that acknowledges nothing for two seconds, too (kCut). Tells `log` at its end, in a line, what it has counted.
class DatagramWire : public Wire {
 public:
  // Says hello to all peers and listens for `time`, or until all have been heard. Returns those that have not.
  virtual std::vector<int> greet(std::chrono::nanoseconds time) = 0;
  virtual std::string path_to(int peer) const = 0;
};
std::unique_ptr<DatagramWire> make_datagram_wire(const WireMap& map, DatagramParts parts,
                                                 std::function<void(const std::string&)> log);

}  // namespace ark::dma
