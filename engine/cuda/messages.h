// Telling the peers: arrivals of what an instance has sent, credits of what it has read, its phase.
#pragma once

#include "engine/cuda/call.h"
#include "engine/cuda/post.h"

namespace ark::cuda {

ARK_DEVICE u64 message_number(const Block& b, const Message& m) { return b.step * m.per_step + m.ordinal; }

// `bytes` of the message's slot from its start, and a raise of the peer's counter; 0: the raise alone.
ARK_APART bool post_request(const LoopParameters& p, u64 step, const Instance& i, const Message& m,
                            u64 bytes) {
  Block b = open_block(p, step, 0, {});
  const u64 stale = ARK_BUG(stale_source) && bytes > 0;
  const u64 start = (message_number(b, m) + stale) % m.slot_count * m.slot_bytes;
  const u64 target = message_number(b, m) % m.slot_count * m.slot_bytes;
  return post(
      m.queue, m.first, m.head | bytes << dma::kBytesShift,
      (m.source + start) / dma::kOffsetUnit | (m.target + target) / dma::kOffsetUnit
                                                  << dma::kTargetOffsetShift,
      [&](const u64* consumed, u64 needed) {
        return wait_reached<dev::Scope::sys>(b, {LoopWait::kRequests, i.phase, i.trip}, consumed, needed);
      });
}

// One processor for all: the peer's counter for this message, one behind the last.
ARK_DEVICE bool raise_peer(Block& b, const Instance& i, const Message& m, u64 bytes) {
  if (m.link == LinkKind::kPosted) return post_request(b.p, b.step, i, m, bytes);
  u64* counter = at<u64>(m.counter);
  if (m.link == LinkKind::kDevice) {
    dev::red_release_add<dev::Scope::gpu>(counter, u64{1});  // of a rank of this launch
  } else {
    // Release: publishes what all processors wrote into the slot, or that they have read it. A store will do:
    // one at a time writes the word, and messages of a channel end in order.
    const u64 ahead = (ARK_BUG(early_store) && bytes > 0) || (ARK_BUG(generous_credit) && bytes == 0);
    const u64 value = m.first + message_number(b, m) + !ARK_BUG(stale_store) + ahead;
    if (ARK_BUG(lost_peer_credit) && bytes == 0) return true;
    if (ARK_BUG(relaxed_store)) {
      dev::st_relaxed<dev::Scope::sys>(counter, value);
    } else if (ARK_BUG(narrow_store)) {
      dev::st_release<dev::Scope::gpu>(counter, value);
    } else {
      dev::st_release<dev::Scope::sys>(counter, value);
    }
  }
  return true;
}

// Whether all processors of the rank are through with the instance's messages, this one as the last.
ARK_DEVICE bool is_last_through(const Block& b, const Instance& i) {
  // Acquire and release: the last one stands behind all that the others did.
  u32* readers = at<u32>(i.readers);
  const u32 before = ARK_BUG(narrow_readers) ? dev::atom_add<dev::Scope::cta>(readers, 1u)
                                             : dev::atom_add<dev::Scope::gpu>(readers, 1u);
  const bool first = ARK_BUG(first_one_sends) && i.readers_period == 0;
  if (ARK_BUG(every_one_sends)) return true;
  if (first ? before != 0 : before + 1 != static_cast<u32>(b.p.processors)) return false;
  // Nobody raises the word again before it has waited for this instance, which orders the store.
  if (!ARK_BUG(restless_readers)) dev::st_relaxed<dev::Scope::gpu>(readers, 0u);
  return true;
}

ARK_DEVICE bool signal_arrival(Block& b, const Instance& i, const Message& m) {
  if (m.link != LinkKind::kDevice) {
    if (!is_last_through(b, i) || ARK_BUG(lost_request)) return true;
    return raise_peer(b, i, m, static_cast<u64>(b.words->sent_bytes));
  }
  // Release: publishes the block's stores into the slot, to a rank of this launch.
  if (ARK_BUG(lost_doorbell) && b.processor == 1) return true;
  if (ARK_BUG(block_scope_arrival)) {
    dev::red_release_add<dev::Scope::cta>(at<u64>(m.counter), u64{1});
  } else {
    dev::red_release_add<dev::Scope::gpu>(at<u64>(m.counter), u64{1});
  }
  return true;
}

// Thread 0, behind the barrier after the tiles: the message's arrival, the credits of what was read, the
// phase. False: the block gives up.
ARK_DEVICE bool signal_instance(Block& b, const Call& call) {
  const Instance& i = call.i;
  if (i.messages > 0 && i.readers_period == 0 && !signal_arrival(b, i, call.messages[0])) return false;
  // The last processor that has read the inboxes returns their credits.
  if (i.readers_period > 0 && is_last_through(b, i) && !ARK_BUG(lost_credit)) {
    for (i32 m = 0; m < i.messages; ++m) {
      if (!raise_peer(b, i, call.messages[m], 0)) return false;
    }
  }
  // Release: publishes this processor's tiles; pairs with the acquire in await_instance.
  const u32 raises = static_cast<u32>(b.words->raises);
  if (ARK_BUG(block_scope_signal)) {
    dev::red_release_add<dev::Scope::cta>(at<u32>(i.counter), raises);
  } else if (!(ARK_BUG(lost_signal) && b.processor == 1)) {
    dev::red_release_add<dev::Scope::gpu>(at<u32>(i.counter), ARK_BUG(double_signal) ? raises + 1 : raises);
  }
  if (b.p.barrier == 0) return true;
  return wait_reached<dev::Scope::gpu>(b, {LoopWait::kBarrier, i.phase, i.trip}, at<const u32>(i.counter),
                                       static_cast<u32>(i.complete_offset + i.complete_stride * b.step));
}

}  // namespace ark::cuda
