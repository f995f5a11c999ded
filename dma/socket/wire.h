// The wire of transport `socket`: an ordered one, whose receiving is work of poll().
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/crc32c.h"
#include "dma/bootstrap/socket.h"
#include "dma/transport.h"

namespace ark::dma {

// What travels: this head, then `bytes` of payload. Little-endian, as in memory.
struct WireFrame {
  uint64_t target_offset = 0;
  uint32_t bytes = 0;
  uint32_t raise_by = 0;
  uint32_t counter = 0;  // route at the receiver; unused where raise_by is 0
  uint16_t target = 0;   // region of the receiver; unused where bytes is 0
  uint16_t kind = 0;
  uint32_t payload_sum = 0;
  uint32_t head_sum = 0;  // of what stands before it

  enum Kind : uint16_t {
    kTransfer = 1,
    kLeaving = 2,  // the last frame: the sender goes in good order
  };

  // CRC-32C: TCP's own sum lets one damaged segment of 65,536 pass, and says nothing of what is between its ends.
  uint32_t sum_of_head() const {
    return crc32c({reinterpret_cast<const std::byte*>(this), offsetof(WireFrame, head_sum)});
  }
  void seal(const std::byte* payload) {
    payload_sum = crc32c({payload, bytes});
    head_sum = sum_of_head();
  }
};
static_assert(sizeof(WireFrame) == 32);

// `sockets`: by rank, not blocking; entries of those that it does not carry to are not open. `bulk`: the same for bulk
// transfers, which then hold up no others; none: all go by the first. A peer may write
// into the regions of the spec and the boxes, and raise the counters that are for it; a frame that asks for more is a
// fault (kBadRequest), as are bytes that were changed on their way, and a connection that ends without kLeaving (kCut).
// Bytes that a peer does not take yet wait here, up to a limit.
// Throws Error(kOs).
std::unique_ptr<Wire> make_socket_wire(const WireMap& map, std::vector<Socket> sockets,
                                       std::vector<Socket> bulk = {});

}  // namespace ark::dma
