// The argument of tests/conformance/cuda/micro_kernel.h's kernel. Host and device; no standard header here.
#pragma once

namespace ark::cuda {

enum MicroMode : int { kGridBarrier, kCounterHop, kAllReduce, kHostEcho, kPostedRequest };

struct MicroParameters {
  int mode, rounds, padding[2];
  unsigned long long counters;  // u32 [64 * 16], zeroed: barrier at 0, hops at 16 and 32, arrivals from 64 on
  unsigned long long inboxes;   // f32 [2 ranks][2 halves][kMicroFloats]
  unsigned long long outputs;   // f32 [2 ranks][kMicroFloats]
  unsigned long long host;      // mapped: u32 asked, at 64 bytes u32 answered
  unsigned long long nanoseconds;  // u64: of all rounds, by block 0's clock
  unsigned long long failed;       // u32: a wait has passed its deadline
  unsigned long long deadline_ns;
  // kPostedRequest, mapped but for the tickets: own outbox (f32 [2 slots][kMicroFloats]), ring of requests
  // and its RingTickets, the first word of a request, offsets of slot 0 in source and target, the peer's
  // count of arrivals.
  unsigned long long outbox, queue, tickets, head, source, target, arrivals;
};
inline constexpr int kMicroFloats = 2048;  // 8 KiB
inline constexpr int kMicroThreads = 256;

}  // namespace ark::cuda
