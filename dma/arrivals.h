// Raises counters for what a wire has seen arrive, after the device whose memory the data lies in can see it.
//
// A NIC's writes to memory of a GPU and its word to the host that they are done take different ways over the bus, so
// the GPU, which waits for a counter in memory of the host, could see the counter first. What the host has been told of
// is behind one settle(); one is enough for all that a single look at the NIC has brought.
#pragma once

#include "dma/transport.h"

namespace ark::dma {

// Of a wire; its pump's thread.
class Arrivals {
 public:
  explicit Arrivals(const WireMap& map) : map_(map) {}

  // The NIC has been looked at: what it has told now may be of later writes than the last settle().
  void looked() { is_settled_ = false; }
  // False: the device cannot be made to see the data; nothing was raised.
  bool raise(uint32_t route, uint64_t by) {
    const bool is_data = route % 2 == static_cast<uint32_t>(RouteEnd::kArrived);
    if (is_data && !is_settled_ && map_.settle && route / 2 < map_.on_device.size() &&
        map_.on_device[route / 2]) {
      if (!map_.settle()) return false;
      is_settled_ = true;
    }
    // Release: publishes what was placed; pairs with Receiver::wait and Sender::acquire.
    map_.counters[map_.rank][route].raise(by);
    return true;
  }

 private:
  const WireMap& map_;
  bool is_settled_ = false;
};

}  // namespace ark::dma
