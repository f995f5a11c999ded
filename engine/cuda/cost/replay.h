// Replays a step of a loop kernel, event by event, against an architecture's rates: every processor's instances in
// order, what each waits for, the ring of weights that runs ahead, tiles that share an output and who is last. What a
// step will take is the end of its longest chain of waits, not a sum of averages.
//
// What it leaves out: words that several processors poll at once, misses of the instruction cache, and traffic of
// activations, which L2 holds.
#pragma once

#include "engine/cuda/cost/rates.h"
#include "engine/cuda/cost/work.h"
#include "engine/run/timeline.h"

namespace ark::cuda::cost {

struct PhaseCost {
  PhaseId phase = 0;
  int32_t times = 0;           // in a step
  int64_t bytes = 0;           // weights, keys and values of all its instances
  double us = 0;               // of the step: spans (engine/run/timeline.h)
  double floor_us = 0;         // its bytes at the card's peak
  int32_t critical_block = 0;  // the processor that was through last, in the last trip
  Counts counts;               // of that processor, in that trip
};

struct StepCost {
  double us = 0, floor_us = 0;  // from the host's post to the tokens at the host
  std::vector<PhaseCost> phases;
  Timeline timeline;  // of the one step, in nanoseconds
  // Along the step: of the blocks that were through last.
  Counts most() const;
};

StepCost replay(const StepTables& tables, const Rates& rates);

}  // namespace ark::cuda::cost
