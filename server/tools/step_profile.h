// Where the time of steps goes: the events of the last steps, added up by phase.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/program/program.h"
#include "engine/run/timeline.h"

namespace ark {

struct PhaseProfile {
  PhaseId phase = kNone;
  std::string name;  // of the node it stems from, without the layer's number where layers share a phase
  std::string code;
  int32_t times = 0;               // a step
  double run_ms = 0, wait_ms = 0;  // a step, the mean over processors; publishing counts as running
  int64_t weight_bytes = 0,
          operations = 0;  // a step, of this rank; multiplications and additions of products
};

// Of rank 0's program, over the last `steps` steps that the timeline holds whole, all of these sizes ("tokens", "rows",
// ...). The longest first.
std::vector<PhaseProfile> step_profile(const Timeline& timeline, const Program& program, int64_t steps,
                                       const SymbolValues& sizes);

// As text, one line a phase and one for all: ms, shares, GB/s, GFLOP/s; `read_rate` in bytes a second is what they are
// percentages of.
std::string profile_text(const std::vector<PhaseProfile>& phases, double read_rate);

// Bytes a second that so many threads read from memory, the best of several turns.
double read_rate(int threads);

}  // namespace ark
