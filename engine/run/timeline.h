// What the processors of a loop did in their last steps, for people: Perfetto's JSON, and how long each phase's
// processors waited while they could have worked. The loops of the CPU and of a GPU record the same events.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace ark {

enum class TraceKind : int32_t { kWait, kRun, kPublish, kDone };

// A processor begins something, which its next event ends. A GPU's loop writes it too (cuda::TraceEvent).
struct TraceEvent {
  uint64_t clock = 0;  // in ticks; 0: no event
  int32_t phase = 0;
  TraceKind kind = TraceKind::kWait;
};

// The last events of one processor, in nanoseconds. Its thread alone adds; others read between steps.
class alignas(64) TraceRing {
 public:
  explicit TraceRing(int32_t events) : events_(events) {}
  void add(int32_t phase, TraceKind kind) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    events_[next_] = {static_cast<uint64_t>(std::chrono::nanoseconds(now).count()), phase, kind};
    next_ = next_ + 1 == events_.size() ? 0 : next_ + 1;
  }
  const std::vector<TraceEvent>& events() const { return events_; }

 private:
  std::vector<TraceEvent> events_;
  std::size_t next_ = 0;
};

struct Timeline {
  double nanoseconds_per_tick = 1;
  std::vector<std::vector<std::string>> phases;  // names, by rank
  std::vector<std::vector<TraceEvent>> blocks;   // by rank and processor, in the order of time
  std::size_t most_events = 0;                   // of a block whose older ones are lost; 0: none are
};

std::vector<std::string> phase_names(const Program& program);

// The ring of each block (as many events each, unused ones all zero) put in order.
Timeline make_timeline(std::span<const TraceEvent> events, int32_t events_each,
                       std::vector<std::vector<std::string>> phases, double nanoseconds_per_tick = 1);

// The Trace Event Format that ui.perfetto.dev opens: a process per rank, a thread per processor.
std::string perfetto_json(const Timeline& timeline);

struct PhaseTimes {
  int32_t phase = 0;
  int64_t instances = 0;  // over all blocks
  double wait_us = 0;     // per instance and block: exposed waits
  double run_us = 0, publish_us = 0;
  // A step, over its instances: each moment belongs to the phase of what ends next in any block, so that phases add up
  // to the step but for its borders.
  double span_us = 0;
};
// By phase of rank 0, in the order of phases.
std::vector<PhaseTimes> phase_times(const Timeline& timeline);

}  // namespace ark
