// Sends of the same numbers to several ranks: the first of them sends for all, so that these are read once and told of
// once, and processors do not pass through an instance for each rank.
#pragma once

#include <vector>

#include "engine/program/program.h"

namespace ark::cuda {

class MergedSends {
 public:
  explicit MergedSends(const Program& program);

  // The phase that sends its message; kNone: it does so itself. The phase has no instances otherwise.
  PhaseId sent_by(PhaseId phase) const { return sent_by_[static_cast<std::size_t>(phase)]; }
  const std::vector<PhaseId>& sent_by() const { return sent_by_; }
  // Whose messages a phase sends beside its own, in order.
  std::vector<PhaseId> also_of(PhaseId first) const;

 private:
  std::vector<PhaseId> sent_by_;  // by phase
};

}  // namespace ark::cuda
