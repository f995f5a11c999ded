// Messages of transport `ucx`, and which of them a receiver takes, in which order. Knows nothing of UCX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "dma/transport.h"

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

// Of a peer and priority, from the oldest that has not ended on: one that the receiver fetches ends when that is
// done, so a receiver has few out of order, however many small ones follow a large one.
inline constexpr uint64_t kMostUcxInFlight = 256;

// What comes from one peer with one priority.
class UcxOrder {
 public:
  // Whether rank map.rank may take the message, with so much payload: it fits a region, and raises what is the peer's.
  bool allows(const WireMap& map, const UcxFrame& frame, size_t bytes) const {
    if (frame.kind < UcxFrame::kHello || frame.kind > UcxFrame::kFarewell || frame.bytes != bytes)
      return false;
    if (frame.number < taken_ || frame.number - taken_ > 2 * kMostUcxInFlight) return false;
    const uint64_t ahead = frame.number - taken_;
    if (ahead < early_.size() && early_[ahead].is_here) return false;
    if (frame.kind != UcxFrame::kTransfer) return bytes == 0 && frame.raise_by == 0;
    return map.may_write(frame.target, frame.target_offset, bytes) &&
           (frame.raise_by == 0 || map.may_raise(frame.sender, frame.counter));
  }

  // The payload of one that is allowed is in its place; f(frame) for each that counts now: all before it have arrived.
  template <class F>
  void arrive(const UcxFrame& frame, F&& f) {
    const uint64_t ahead = frame.number - taken_;
    if (early_.size() <= ahead) early_.resize(ahead + 1);
    early_[ahead] = {true, frame};
    for (; !early_.empty() && early_.front().is_here; early_.pop_front(), ++taken_) f(early_.front().frame);
  }

  uint64_t taken() const { return taken_; }  // messages whose turn has come

 private:
  struct Arrival {
    bool is_here = false;
    UcxFrame frame;
  };
  uint64_t taken_ = 0;
  std::deque<Arrival> early_;  // those from there on
};

}  // namespace ark::dma
