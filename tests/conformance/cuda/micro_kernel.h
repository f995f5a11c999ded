// What hops, barriers and exchanges cost on a GPU, measured by themselves: the kernel of micro.h.
#pragma once

#include "dma/device.h"
#include "engine/cuda/post.h"
#include "tests/conformance/cuda/micro_kernel_parameters.h"

namespace ark::cuda {

// Thread 0 waits; false: given up. The rest of the block follows by sync().
template <dev::Scope S, class T>
ARK_DEVICE bool micro_wait(const MicroParameters& p, const T* word, T needed) {
  const dev::u64 start = dev::global_timer_ns();
  for (dev::u32 tries = 1;; ++tries) {
    const T seen = dev::ld_acquire<S>(word);
    if (static_cast<T>(seen - needed) < (T{1} << (sizeof(T) * 8 - 1))) return true;
    auto* failed = reinterpret_cast<dev::u32*>(p.failed);
    if (tries % 64 == 0) {
      if (dev::ld_relaxed<dev::Scope::gpu>(failed) != 0) return false;
      if (dev::global_timer_ns() - start > p.deadline_ns) {
        dev::st_relaxed<dev::Scope::gpu>(failed, 1u);
        return false;
      }
    }
    dev::pause(word, seen, needed, 20);
  }
}

// All blocks have come as far as round `round`.
ARK_DEVICE bool micro_barrier(const MicroParameters& p, dev::u32* counter, dev::u32 round) {
  dev::sync();
  bool fine = true;
  if (dev::thread_id() == 0) {
    dev::red_release_add<dev::Scope::gpu>(counter, 1u);
    fine = micro_wait<dev::Scope::gpu>(p, counter, static_cast<dev::u32>(dev::grid_blocks()) * (round + 1));
  }
  dev::sync();
  return fine;
}

// One-shot, the way kSend and kRecvReduce do it: blocks of rank r write their slice into the peer's inbox and
// raise its counter; each block adds its slice when all of the peer's blocks have arrived.
ARK_DEVICE void micro_all_reduce(const MicroParameters& p, dev::u32* arrivals, dev::u32 round) {
  const int half = dev::grid_blocks() / 2, rank = dev::block_id() / half, block = dev::block_id() % half;
  auto* inboxes = reinterpret_cast<float*>(p.inboxes);
  auto* outputs = reinterpret_cast<float*>(p.outputs);
  const int first = kMicroFloats * block / half, last = kMicroFloats * (block + 1) / half;
  float* theirs = inboxes + ((1 - rank) * 2 + static_cast<int>(round & 1)) * kMicroFloats;
  const float* own = inboxes + (rank * 2 + static_cast<int>(round & 1)) * kMicroFloats;
  for (int i = first + dev::thread_id(); i < last; i += kMicroThreads)
    dev::st_global(theirs + i,
                   static_cast<float>(rank + 1) * static_cast<float>(i) + static_cast<float>(round));
  dev::sync();
  if (dev::thread_id() == 0) {
    dev::red_release_add<dev::Scope::sys>(arrivals + (1 - rank) * 16, 1u);
    micro_wait<dev::Scope::sys>(p, arrivals + rank * 16, static_cast<dev::u32>(half) * (round + 1));
  }
  dev::sync();
  for (int i = first + dev::thread_id(); i < last; i += kMicroThreads) {
    const float mine = static_cast<float>(rank + 1) * static_cast<float>(i) + static_cast<float>(round);
    dev::st_global(outputs + rank * kMicroFloats + i, mine + dev::ld_global(own + i));
  }
}

// Block 0 writes its outbox and posts a request; the pump moves the bytes into the peer's inbox, and counts
// there.
ARK_DEVICE void micro_posted(const MicroParameters& p, dev::u32 round) {
  if (dev::block_id() != 0) return;
  const dev::u64 slot = (round & 1) * kMicroFloats * sizeof(float);
  float* out = reinterpret_cast<float*>(p.outbox + slot);
  for (int i = dev::thread_id(); i < kMicroFloats; i += kMicroThreads)
    dev::st_global(out + i, static_cast<float>(i) + static_cast<float>(round));
  dev::sync();
  if (dev::thread_id() == 0) {
    const dev::u64 bytes = kMicroFloats * sizeof(float);
    post(p.queue, p.tickets, p.head | bytes << 32, (p.source + slot) / 4 | (p.target + slot) / 4 << 32,
         [&](const u64* counter, u64 needed) { return micro_wait<dev::Scope::sys>(p, counter, needed); });
    micro_wait<dev::Scope::sys>(p, reinterpret_cast<const u64*>(p.arrivals), u64{round} + 1);
  }
  dev::sync();
}

ARK_DEVICE void micro_round(const MicroParameters& p, dev::u32* counters, dev::u32 round) {
  if (p.mode == kGridBarrier) {
    micro_barrier(p, counters, round);
  } else if (p.mode == kCounterHop) {  // there and back
    if (dev::thread_id() != 0 || dev::block_id() > 1) return;
    if (dev::block_id() == 0) dev::red_release_add<dev::Scope::gpu>(counters + 16, 1u);
    micro_wait<dev::Scope::gpu>(p, counters + (dev::block_id() == 0 ? 32 : 16), round + 1);
    if (dev::block_id() == 1) dev::red_release_add<dev::Scope::gpu>(counters + 32, 1u);
  } else if (p.mode == kAllReduce) {
    micro_all_reduce(p, counters + 64, round);
  } else if (p.mode == kPostedRequest) {
    micro_posted(p, round);
  } else if (p.mode == kHostEcho) {
    if (dev::thread_id() != 0 || dev::block_id() != 0) return;
    auto* host = reinterpret_cast<dev::u32*>(p.host);
    dev::st_release<dev::Scope::sys>(host, round + 1);
    micro_wait<dev::Scope::sys>(p, host + 16, round + 1);
  }
}

ARK_KERNEL(ark_loop, MicroParameters, kMicroThreads) {
  auto* counters = reinterpret_cast<dev::u32*>(p.counters);
  micro_barrier(p, counters + 48, 0);
  const dev::u64 start = dev::global_timer_ns();
  for (dev::u32 round = 0; round < static_cast<dev::u32>(p.rounds); ++round) micro_round(p, counters, round);
  if (dev::block_id() == 0 && dev::thread_id() == 0)
    dev::st_global(reinterpret_cast<dev::u64*>(p.nanoseconds), dev::global_timer_ns() - start);
}

}  // namespace ark::cuda
