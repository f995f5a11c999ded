// What the blocks of a loop did in their last steps, as recorded by the kernel (TraceEvent), for people:
// Perfetto's JSON, and how long each phase's blocks waited while they could have worked.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/cuda/image.h"

namespace ark::cuda {

struct Timeline {
  int32_t processors = 1;  // blocks = ranks * processors
  double nanoseconds_per_tick = 1;
  std::vector<std::vector<TraceEvent>> blocks;  // by block, in the order of time
};

// The ring of each block (as many events each, unused ones all zero) put in order.
Timeline make_timeline(std::span<const TraceEvent> events, int32_t events_each, int32_t processors,
                       double nanoseconds_per_tick);

// Name of a phase of a rank.
using PhaseName = std::function<std::string(int32_t rank, int32_t phase)>;

// The Trace Event Format that ui.perfetto.dev opens: a process per rank, a thread per processor.
std::string perfetto_json(const Timeline& timeline, const PhaseName& name);

struct PhaseTimes {
  int32_t phase = 0;
  int64_t instances = 0;  // over all blocks
  double wait_us = 0;     // per instance and block: exposed waits
  double run_us = 0, publish_us = 0;
};
// By phase of rank 0, in the order of phases.
std::vector<PhaseTimes> phase_times(const Timeline& timeline);

}  // namespace ark::cuda
