#include "engine/cuda/merged_sends.h"

#include "base/index.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"

namespace ark::cuda {

// Phases of which, in every trip, one instance follows the other, and reads what it reads.
MergedSends::MergedSends(const Program& program) : sent_by_(program.phases.size(), kNone) {
  const std::vector<ark::Instance> all = unroll(program);
  std::vector<bool> follows(program.phases.size(), true);
  const auto x_of = [&](const ark::Instance& i) {
    const Phase& phase = program.phases[i.phase];
    return is_send(program.variants[phase.variant].code) ? resolve(program, phase, phase.operands[0], i.trip)
                                                         : kNone;
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const BufferId x = x_of(all[i]);
    const bool fits = i > 0 && x != kNone && x_of(all[i - 1]) == x && all[i - 1].trip == all[i].trip &&
                      all[i - 1].phase + 1 == all[i].phase;
    follows[at(all[i].phase)] = follows[at(all[i].phase)] && fits;
  }
  for (std::size_t phase = 1; phase < follows.size(); ++phase) {
    if (!follows[phase]) continue;
    const auto before = static_cast<PhaseId>(phase - 1);
    sent_by_[phase] = sent_by(before) == kNone ? before : sent_by(before);
  }
}

std::vector<PhaseId> MergedSends::also_of(PhaseId first) const {
  std::vector<PhaseId> also;
  for (std::size_t phase = at(first) + 1; phase < sent_by_.size() && sent_by_[phase] == first; ++phase)
    also.push_back(static_cast<PhaseId>(phase));
  return also;
}

}  // namespace ark::cuda
