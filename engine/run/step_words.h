// What ranks of other processes tell rank 0 of each step, so that it is known who was late, and whether anybody was: a
// wire between processes is slow where all ranks have waited.
//
// A word is a message of its own behind all that the rank has sent in the step. It needs no credits: rank 0 asks for
// step n, and for n - 1 once more, before it posts step n + kDepth, and there are twice as many slots.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dma/group.h"
#include "engine/run/step_cost.h"

namespace ark {

class StepWords {
 public:
  // For a channel of the group's endpoints that nothing else uses.
  static dma::ChannelSpec channel(dma::Priority priority);
  StepWords(const dma::Group& group, uint32_t channel);

  // Of a rank but 0, by the thread that ends its steps; steps count from 1, none is left out.
  [[nodiscard]] dma::Fault tell(uint64_t step, const RankCost& cost, const dma::WaitContext& context);
  // Of rank 0, once each step is done here, in order: what it cost, by the others' words. A step that has waited for
  // others for long waits for these, too, a small part of that time. Words that have not come then are late themselves:
  // what rank 0 waited is divided among wire and rank as in the last step of which they are known.
  StepCost cost_of_step(uint64_t step, const RankCost& own);

 private:
  // The costs of all ranks, or none where a word has not come within `patience`.
  std::vector<RankCost> collect(uint64_t step, const RankCost& own, std::chrono::nanoseconds patience) const;
  void learn(const StepCost& cost);

  dma::Sender to_first_;                    // of the other ranks
  std::vector<dma::Receiver> from_others_;  // of rank 0, as all below
  std::optional<RankCost> without_words_;   // the step before
  double wire_part_ = 0;                    // of what was waited
};

}  // namespace ark
