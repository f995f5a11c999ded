// Telling the peers: arrivals of what an instance has sent, credits of what it has read, its phase.
#pragma once

#include "engine/cuda/call.h"
#include "engine/cuda/post.h"

namespace ark::cuda {

ARK_DEVICE u64 message_number(const Block& b, const Message& m) { return b.step * m.per_step + m.ordinal; }

// `bytes` of the message's slot from its start, and a raise of the peer's counter; 0: the raise alone.
ARK_APART bool post_request(const LoopParameters& p, u64 step, const Instance& i, const Message& m,
                            u64 bytes) {
  Block b = open_block(p, step, 0);
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

// Of a message of that many bytes, or of a credit: what its counter comes to.
ARK_DEVICE u64 raised_value(const Block& b, const Message& m, u64 bytes) {
  const bool is_ahead = bytes > 0 ? ARK_BUG(early_store) : ARK_BUG(generous_credit);
  return m.first + message_number(b, m) + !ARK_BUG(stale_store) + is_ahead;
}
ARK_DEVICE bool has_link(const Instance& i, LinkKind link) {
  return (i.links & 1 << static_cast<int>(link)) != 0;
}

// With the counters' raises behind it a release: publishes what all processors wrote into the slots, or that they have
// read them, to ranks of other launches or of this one; requests do so themselves.
ARK_DEVICE void fence_messages(const Instance& i) {
  const bool leaves = has_link(i, LinkKind::kMapped);
  if (leaves && ARK_BUG(relaxed_store)) return;
  if (leaves && !ARK_BUG(narrow_store)) return dev::fence<dev::Scope::sys>();
  if (leaves || has_link(i, LinkKind::kDevice)) dev::fence<dev::Scope::gpu>();
}

// One processor for all: the peers' counters for these messages, one behind the last. A store will do where a peer is
// of another launch: one at a time writes the word, and messages of a channel end in order.
ARK_DEVICE bool raise_peers(Block& b, const Instance& i, const Message* messages, u64 bytes) {
  fence_messages(i);
  ARK_ROLLED
  for (i32 n = 0; n < i.messages; ++n) {
    const Message& m = messages[n];
    u64* const counter = at<u64>(m.counter);
    if (m.link == LinkKind::kPosted) {
      if (!post_request(b.p, b.step, i, m, bytes)) return false;
    } else if (m.link == LinkKind::kMapped) {
      if (ARK_BUG(lost_peer_credit) && bytes == 0) continue;
      dev::st_relaxed<dev::Scope::sys>(counter, raised_value(b, m, bytes));
    } else {
      dev::red_relaxed_add<dev::Scope::gpu>(counter, u64{1});  // of a rank of this launch
    }
  }
  return true;
}

// How many processors were through before this one. Acquire and release: the last one stands behind all that the
// others did.
ARK_DEVICE u32 count_reader(u32* readers) {
  if (ARK_BUG(narrow_readers)) return dev::atom_add<dev::Scope::cta>(readers, 1u);
  return dev::atom_add<dev::Scope::gpu>(readers, 1u);
}
ARK_DEVICE bool is_last_of(u32 before, const Block& b, const Instance& i) {
  if (ARK_BUG(first_one_sends) && i.readers_period == 0) return before == 0;
  return before + 1 == static_cast<u32>(b.p.processors);
}

// Whether all processors of the rank are through with the instance's messages, this one as the last.
ARK_DEVICE bool is_last_through(const Block& b, const Instance& i) {
  u32* readers = at<u32>(i.readers);
  const u32 before = count_reader(readers);
  if (ARK_BUG(every_one_sends)) return true;
  if (!is_last_of(before, b, i)) return false;
  // Nobody raises the word again before it has waited for this instance, which orders the store.
  if (!ARK_BUG(restless_readers)) dev::st_relaxed<dev::Scope::gpu>(readers, 0u);
  return true;
}

// Release, by its fence: publishes the block's stores into the slots, to ranks of this launch.
ARK_DEVICE void raise_arrivals(const Block& b, const Instance& i, const Message* messages) {
  if (ARK_BUG(lost_doorbell) && b.processor == 1) return;
  if (ARK_BUG(block_scope_arrival)) {
    dev::fence<dev::Scope::cta>();
  } else {
    dev::fence<dev::Scope::gpu>();
  }
  ARK_ROLLED
  for (i32 n = 0; n < i.messages; ++n)
    dev::red_relaxed_add<dev::Scope::gpu>(at<u64>(messages[n].counter), u64{1});
}
// What signal_instance() publishes.
ARK_DEVICE void raise_phase(const Block& b, u32* counter, u32 raises) {
  if (ARK_BUG(block_scope_signal)) return dev::red_release_add<dev::Scope::cta>(counter, raises);
  if (ARK_BUG(lost_signal) && b.processor == 1) return;
  dev::red_release_add<dev::Scope::gpu>(counter, raises + ARK_BUG(double_signal));
}

ARK_DEVICE bool is_quiet(const Block& b, const Instance& i) {
  return tells(b) && b.p.barrier == 0 && (i.is_quiet != 0 || ARK_BUG(quiet_signal));
}

ARK_DEVICE bool signal_arrivals(Block& b, const Instance& i, const Message* messages) {
  if (has_link(i, LinkKind::kDevice)) {  // all of them: ranks of one launch have no others
    raise_arrivals(b, i, messages);
    return true;
  }
  if (!is_last_through(b, i) || ARK_BUG(lost_request)) return true;
  return raise_peers(b, i, messages, static_cast<u64>(b.words->sent_bytes));
}

// Of what does nothing: one processor raises for all.
ARK_DEVICE Share left_out(const Block& b, const Instance& i) {
  const i32 all = b.processor == i.base ? static_cast<i32>(b.p.processors) : 0;
  return {{0, 0}, b.p.barrier != 0 ? 1 : all};
}

// Of messages that were left out, as far as the next ones are not: peers count as if they had been sent, or read. One
// processor, which came behind all that were not.
ARK_DEVICE void settle(const Block& b, const Instance& i, const Message* messages) {
  const bool sends = i.readers_period == 0;
  fence_messages(i);
  ARK_ROLLED
  for (i32 n = 0; n < i.messages; ++n) {
    const Message& m = messages[n];
    u64* const counter = at<u64>(m.counter);
    if (m.link == LinkKind::kDevice) {
      const i32 raises = i.settles * (sends ? b.p.processors : 1);
      dev::red_relaxed_add<dev::Scope::gpu>(counter, static_cast<u64>(raises));
    } else if (!sends) {
      dev::st_relaxed<dev::Scope::sys>(counter, raised_value(b, m, 0));
    }
  }
}

// Thread 0, behind the barrier after the tiles: the messages' arrivals, the credits of what was read, the
// phase. False: the block gives up.
ARK_DEVICE bool signal_instance(Block& b, const Call& call) {
  const Instance& i = call.i;
  const bool is_told = tells_ranks(b, i);
  if (is_told && i.settles != 0 && b.processor == i.base && !ARK_BUG(parts_not_settled))
    settle(b, i, call.messages);
  if (kHasPeers && !is_told && i.messages > 0 && i.readers_period == 0 &&
      !signal_arrivals(b, i, call.messages))
    return false;
  // The last processor that has read the inboxes returns their credits.
  if (kHasPeers && !is_told && i.readers_period > 0 && is_last_through(b, i) && !ARK_BUG(lost_credit) &&
      !raise_peers(b, i, call.messages, 0))
    return false;
  const u32 raises = static_cast<u32>(b.words->raises);
  // Counters rise in every step. Where nobody waits for this one until the step's border, which orders all that came
  // before, a release would but hold up the block's next instance.
  if (is_quiet(b, i)) {
    dev::red_relaxed_add<dev::Scope::gpu>(at<u32>(i.counter), raises);
    return true;
  }
  // Release: publishes this processor's tiles; pairs with the acquire in await_instance.
  raise_phase(b, at<u32>(i.counter), raises);
  if (b.p.barrier == 0) return true;
  return wait_reached<dev::Scope::gpu>(b, {LoopWait::kBarrier, i.phase, i.trip}, at<const u32>(i.counter),
                                       static_cast<u32>(i.complete_offset + i.complete_stride * b.step));
}

}  // namespace ark::cuda
