// What one thread of a loop loses to others: its waits as they count themselves, and what the system says of its core.
#pragma once

#include <cstdint>

#include "dma/wait.h"
#include "engine/run/step_cost.h"

namespace ark {

// Of the thread that calls begin() and step_done().
class alignas(64) ProcessorMeter {
 public:
  dma::WaitMeter waits;  // for the contexts of all its waits

  // The thread takes part from now on.
  void begin();
  // Since the call before. The system is asked once a millisecond at most: what shorter steps lost is told with a later
  // one.
  ProcessorCost step_done();

 private:
  struct Usage {
    int64_t at_ns = 0, cpu_ns = 0, slept_ns = 0, delayed_ns = 0;
    int64_t faults = 0, switches = 0,
            stops = 0;  // stops: times that it left its core by itself, but not to wait
  };
  Usage usage(int64_t now_ns) const;

  Usage last_;
};

}  // namespace ark
