// What a step's time went to besides computing, as far as executors can tell without slowing it.
#pragma once

#include <cstdint>
#include <span>

namespace ark {

struct SentBytes {
  int64_t data = 0, zeros = 0;
  SentBytes& operator+=(const SentBytes& other) {
    data += other.data;
    zeros += other.zeros;
    return *this;
  }
};

// All-reduces, by who added them up.
struct ReduceCounts {
  int64_t by_pump = 0, by_processors = 0;
  ReduceCounts& operator+=(const ReduceCounts& other) {
    by_pump += other.by_pump;
    by_processors += other.by_processors;
    return *this;
  }
};

// Of one step, in nanoseconds; zeros where an executor cannot tell. Ranks are -1 where nothing is to be told of them.
struct StepCost {
  int64_t lost_ns = 0;  // a processor was ready but had no core: another thread, or another machine, had it
  int64_t faulted_ns = 0;  // a processor waited for memory that came from a disk
  int64_t late_ns = 0;  // a rank was late, for neither of these reasons: the others waited, or it was stopped
  int64_t wire_ns = 0;  // all ranks waited for messages at the same time
  // No time: what ranks of this process have sent to others, and what more it would be with rows known to be zeros.
  SentBytes sent;
  ReduceCounts reduced;  // of each of these ranks
  int32_t lost_rank = -1, late_rank = -1;
};

// What a processor's thread tells of a step.
struct ProcessorCost {
  int64_t off_ns = 0;    // not on a core, though it did not wait for anybody
  int32_t faults = 0;    // pages that came from a disk
  int32_t switches = 0;  // times that its core was taken from it
  int32_t stops = 0;     // times that it was stopped, by a signal or by a lock of the system
  // Ready, but not on a core, as the system counts it, also after waits; 0: it does not.
  int64_t delayed_ns = 0;
  int64_t waited_ns = 0;      // for what other ranks do
  int64_t longest_ns = 0;     // of these waits,
  int32_t longest_peer = -1;  // and for which rank
  SentBytes sent;             // to other ranks
  ReduceCounts reduced;       // of the rank: its leader's
};

// What a rank tells of a step; as it is, it may travel to rank 0 (step_words.h).
struct RankCost {
  int64_t waited_ns = 0;      // for what other ranks do
  int64_t longest_ns = 0;     // of these waits,
  int32_t longest_peer = -1;  // and for which rank
  int32_t rank = 0;
  // The most that one of its processors lost, while the others waited for it: its core, time for a page from a disk,
  // and by being stopped.
  int64_t lost_ns = 0, faulted_ns = 0, stopped_ns = 0;
};
// `processors`: the leader first. Its waits are the rank's: all wait for the same messages.
RankCost cost_of_rank(int32_t rank, std::span<const ProcessorCost> processors);

// Nanoseconds that it was ready but had no core: another thread, or another machine, had it.
int64_t lost_of(const ProcessorCost& processor);

// `ranks`: of all ranks, those that are known. With all of them it is known who was late; with one of several only for
// whom it waited. Without `sent` and `reduced`.
StepCost cost_of(std::span<const RankCost> ranks, int32_t all_ranks);

}  // namespace ark
