// What host and loop tell each other beside the mailbox: plain words in mapped host memory, zeroed at the
// start. Included by the host and by device code: no standard header here.
#pragma once

namespace ark::cuda {

// One writer each; system scope. A word to its own cache line, so that polling one disturbs no other.
struct alignas(64) ControlWord {
  unsigned value;
};

// Why a block has given up, and where. Written by one thread of the block, `kind` last (release).
struct alignas(64) FaultRecord {
  unsigned kind;                     // FaultKind of dma/fault.h: 0 none, 1 aborted, 2 deadline passed
  unsigned what;                     // LoopWait
  int rank, processor, phase, trip;  // -1: does not apply; phase: index into Program::phases
  unsigned long long step;           // number, from 1
  unsigned long long seen, needed;   // of the counter that was waited for
};

// What a wait of the loop waits for.
enum class LoopWait : unsigned {
  kStep,
  kRankLeader,
  kPhase,
  kArrival,
  kCredit,
  kWeights,
  kEnd,
  kBarrier,
  kRequests
};

struct LoopControl {
  ControlWord abort;   // host: not 0 ends all waits; a block that gives up sets it too
  ControlWord park;    // host: leave at the next step border, but run at least one posted step first
  ControlWord faults;  // blocks that have written their record
  ControlWord beat;    // the leader: the number of the step that it has opened last, modulo 2^32
  // FaultRecord of each block follows.
};
static_assert(sizeof(LoopControl) == 256 && sizeof(FaultRecord) == 64);

}  // namespace ark::cuda
