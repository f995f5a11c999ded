// Blocks that post requests into a ring of dma, with the loop's own code; in ring_kernel.cc, bugs seeded.
#pragma once

#include "engine/cuda/block_layout.h"

namespace ark::test {

struct RingParameters {
  cuda::LoopParameters loop;  // control and host words, deadline
  cuda::u64 queue;            // dma::Ring
  cuda::u64 tickets;          // cuda::RingTickets
  cuda::u64 source;           // 16 bytes a request: count of block 0, then of block 1, ...
  int count;                  // requests a block
};

inline constexpr int kRingShared = 32 << 10;  // bytes of shared memory that the kernel needs

extern "C" void post_requests(const RingParameters& p);

}  // namespace ark::test
