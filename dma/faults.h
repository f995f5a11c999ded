// A transport that goes wrong on purpose: wraps any other, for tests of order, retry and cut.
#pragma once

#include <cstdint>
#include <memory>

#include "dma/transport.h"

namespace ark::dma {

struct FaultPlan {
  uint64_t seed = 1;
  double drop = 0;                  // share of transfers that vanish without a word
  double refuse = 0;                // share of transfers that the wire says it lost
  uint32_t delay_polls = 0;         // each transfer takes effect after 0..delay_polls polls
  bool reorder = false;             // due transfers take effect in random order
  uint64_t cut_after = UINT64_MAX;  // from this transfer on nothing gets through
};

// Posted links only: what a processor stores itself never passes the wire.
std::unique_ptr<Transport> with_faults(std::unique_ptr<Transport> transport, const FaultPlan& plan);

}  // namespace ark::dma
