// The wire of transport `socket`: an ordered one, whose receiving is work of poll().
#pragma once

#include <memory>
#include <vector>

#include "dma/bootstrap/socket.h"
#include "dma/transport.h"

namespace ark::dma {

// What travels: this head, then `bytes` of payload. Little-endian, as in memory.
struct WireFrame {
  uint64_t target_offset = 0;
  uint64_t bytes = 0;
  uint64_t raise_by = 0;
  uint32_t counter = 0;  // route at the receiver; unused where raise_by is 0
  uint16_t target = 0;   // region of the receiver; unused where bytes is 0
  uint16_t kind = 0;

  enum Kind : uint16_t {
    kTransfer = 1,
    kLeaving = 2,  // the last frame: the sender goes in good order
  };
};
static_assert(sizeof(WireFrame) == 32);

// `sockets`: by rank, not blocking; entries of those that it does not carry to are not open. A peer may write
// into the regions of the spec and the boxes, and raise the counters that are for it; a frame that asks for more is a
// fault (kBadRequest), as is a connection that ends without kLeaving (kCut). Bytes that a peer does not take yet wait
// here, up to a limit.
std::unique_ptr<Wire> make_socket_wire(const WireMap& map, std::vector<Socket> sockets);

}  // namespace ark::dma
