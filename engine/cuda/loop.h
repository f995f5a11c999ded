// The persistent loop of a device: ranks x processors blocks run whole steps without the host in their path.
//
// Block 0 is the leader: it alone looks at the mailbox, copies a posted step into device memory and opens the
// turn. Each rank's processor 0 then applies what the step says about pages and tokens, and opens the rank.
// All blocks run the instances of their rank in program order: wait, tiles, signal. The warp behind
// those of the consumers runs ahead through the matrix products of the step and fills the ring of weights.
#pragma once

#include "engine/cuda/lamport.h"
#include "engine/cuda/messages.h"
#include "engine/cuda/producer.h"
#include "engine/cuda/ring.h"
#include "engine/cuda/step_begin.h"

namespace ark::cuda {

// ---- timeline

ARK_DEVICE void trace(const Block& b, int phase, int kind) {
#if defined(ARK_TRACE)
  if (b.thread != 0 || b.p.trace == 0) return;
  u64* head = at<u64>(b.p.trace) + dev::block_id();
  TraceEvent* events = at<TraceEvent>(b.p.trace + dev::grid_blocks() * sizeof(u64)) +
                       static_cast<u64>(dev::block_id()) * b.p.trace_events;
  events[(*head)++ % b.p.trace_events] = {dev::global_timer_ns(), phase, kind};
#else
  (void)b, (void)phase, (void)kind;
#endif
}

// ---- the mailbox; thread 0 of the leader

// True: step `step` is posted and shall be run in this launch. False: leave.
ARK_DEVICE bool await_post(Block& b, u64 step) {
  LoopControl* host = at<LoopControl>(b.p.host);
  const u64 run = step - b.p.first_step, start = dev::global_timer_ns();
  if (b.p.lease != 0 && run >= b.p.lease) return false;
  for (u32 tries = 1;; ++tries) {
    // All three before any is looked at: their trips over the bus overlap.
    const u32 park = dev::ld_relaxed<dev::Scope::sys>(&host->park.value);
    const u32 abort = dev::ld_relaxed<dev::Scope::sys>(&host->abort.value);
    // Acquire: pairs with the host's release of the slot.
    const u64 posted = dev::ld_acquire<dev::Scope::sys>(at<u64>(b.p.mailbox));
    if (abort != 0) {
      give_up(b.p, LoopWait::kStep, -1, -1, b.step, step - 1, step, false);
      return false;
    }
    if (park != 0 && run > 0) return false;
    if (posted >= step) break;
    if (park != 0 || dev::global_timer_ns() - start > b.p.linger_ns) return false;
    dev::pause(at<u64>(b.p.mailbox), posted, step, 20);
  }
  // A sign of life, by one writer: it orders nothing and waits for nothing.
  dev::st_relaxed<dev::Scope::sys>(&host->beat.value, static_cast<u32>(step));
  return true;
}

// The slot of the step into device memory: one reader of host memory for all ranks.
ARK_DEVICE void republish(const Block& b, u64 step) {
  const u64 slot = b.p.mailbox + b.p.slots + step % b.p.depth * b.p.slot_bytes;
  const u64 own = static_cast<u64>(b.thread) * 8;
  const auto copy = [&](u64 begin, u64 end) {
    ARK_ROLLED
    for (u64 i = begin + own; i < end; i += kConsumers * 8)
      dev::st_global(at<u64>(b.p.record + i), dev::ld_global(at<const u64>(slot + i)));
  };
  // The record's first words are fetched beside its length, not behind it: mostly they are all.
  const u64 first = own < b.p.vals ? dev::ld_global(at<const u64>(slot + own)) : 0;
  const u64 bytes = dev::ld_global(&at<const StepRecord>(slot)->bytes);
  copy(b.p.vals, b.p.vals + static_cast<u64>(b.p.rank_count) * b.p.vals_each * 8);
  if (own < bytes) dev::st_global(at<u64>(b.p.record + own), first);
  copy(kConsumers * 8, bytes);
}

// ---- borders of steps; all consumer threads. False: the block leaves.

// The step's vals as 32-bit numbers; behind them the splits of attention.
ARK_DEVICE void read_vals(const Block& b) {
  const i64* vals = at<const i64>(b.p.record + b.p.vals) + static_cast<u64>(b.rank_index) * b.p.vals_each;
  ARK_ROLLED
  for (i32 v = b.thread; v < b.rank->val_count; v += kConsumers)
    b.vals[v] = static_cast<i32>(dev::ld_global(vals + v));
  if (b.thread == 0) {
    const u64 longest = dev::ld_global(at<const u64>(b.rank->longest));
    b.vals[b.rank->val_count] = most_splits(static_cast<i32>(longest));
  }
}

// Thread 0: whether the turn is the last one.
ARK_DEVICE bool await_turn(Block& b, u64 turn) {
  Control* control = at<Control>(b.p.control);
  const bool is_leader = b.processor == 0;
  const u64* word = is_leader ? &control->go : at<const u64>(b.rank->ready);
  if (!wait_reached<dev::Scope::gpu>(b, {is_leader ? LoopWait::kStep : LoopWait::kRankLeader}, word, turn))
    return true;
  return dev::ld_relaxed<dev::Scope::gpu>(&control->stop_at) == turn || is_stopped(b);
}

// Release: publishes the record and stop_at.
ARK_DEVICE void publish_go(Control* control, u64 turn) {
  if (ARK_BUG(relaxed_go)) return dev::st_relaxed<dev::Scope::gpu>(&control->go, turn);
  dev::st_release<dev::Scope::gpu>(&control->go, turn);
}

ARK_DEVICE void lead_turn(Block& b, u64 turn, u64 step, u32* leave) {
  Control* control = at<Control>(b.p.control);
  if (b.thread == 0) *leave = await_post(b, step) ? 0 : 1;
  // The other ranks may still read the record of the step before.
  if (b.thread < b.p.rank_count) {
    const RankTables* rank = at<const RankTables>(b.p.ranks) + b.thread;
    wait_reached<dev::Scope::gpu>(b, {LoopWait::kEnd}, at<const u64>(rank->through),
                                  (step - 1) * b.p.processors);
  }
  if (consumers_stopped(b) && b.thread == 0) *leave = 1;
  consumers_sync();
  if (*leave == 0) republish(b, step);
  if (!ARK_BUG(go_without_barrier)) consumers_sync();
  if (b.thread != 0) return;
  if (*leave != 0) dev::st_relaxed<dev::Scope::gpu>(&control->stop_at, turn);
  publish_go(control, turn);
}

ARK_APART bool open_turn(const LoopParameters& p) {
  Block b = open_turn_block(p);
  const u64 turn = b.words->turn, step = b.step + 1;
  u32* leave = &b.words->leave[turn % 2];
  if (dev::block_id() == 0) {
    lead_turn(b, turn, step, leave);
  } else if (b.warp == 0) {
    if (b.lane == 0) *leave = await_turn(b, turn) ? 1 : 0;
    dev::sync_warp();
  }
  consumers_sync();
  if (b.processor == 0) {
    if (*leave == 0) begin_step(b);
    if (!ARK_BUG(ready_without_barrier)) consumers_sync();
    // Release: publishes what begin_step wrote; also to leave, for those who wait for nothing else.
    if (b.thread == 0) dev::st_release<dev::Scope::gpu>(at<u64>(b.rank->ready), turn);
    consumers_sync();
  }
  if (*leave != 0) return false;
  const i32 rows = most_rows(b);  // asked for beside vals
  const LamportState lamport = lamport_state(b);
  read_vals(b);
  choose_ring(b, rows);
  open_lamport(b, rows, lamport);
  return true;
}

ARK_APART bool close_step(const LoopParameters& p) {
  Block b = open_turn_block(p);
  const u64 step = b.step + 1;
  fence_parts(b);
  consumers_sync();
  if (b.thread != 0) return true;
  // Release: publishes the last phases' results to the rank's processor 0.
  dev::red_release_add<dev::Scope::gpu>(at<u64>(b.rank->through), u64{1});
  if (b.processor != 0) return true;
  if (!wait_reached<dev::Scope::gpu>(b, {LoopWait::kEnd}, at<u64>(b.rank->through),
                                     (step - ARK_BUG(early_end)) * b.p.processors))
    return false;
  // Release: pairs with the host's acquire of done.
  dev::st_release<dev::Scope::sys>(at<u64>(b.p.mailbox + kLineBytes * (1 + static_cast<u64>(b.rank_index))),
                                   step);
  return true;
}

// ---- instances

// Of the running instance and of the kFetchAhead that follow; instance n has those of number n % kInstanceBuffers.
struct InstanceBuffers {
  Instance* instances;
  Wait* waits;
  Message* messages;
};

ARK_DEVICE InstanceBuffers instance_buffers(const Block& b, i32 n) {
  const SharedLayout s = shared_layout(b.p.stages);
  const u32 which = static_cast<u32>(n) % kInstanceBuffers;
  u8* shared = dev::shared();
  return {reinterpret_cast<Instance*>(shared + s.instances) + which,
          reinterpret_cast<Wait*>(shared + s.waits) + which * kMaxWaits,
          reinterpret_cast<Message*>(shared + s.messages) + which * kMaxMessages};
}

ARK_DEVICE void copy_table(const Block& b, void* to, u64 from, u32 bytes) {
  ARK_ROLLED
  for (u32 i = static_cast<u32>(b.lane) * 16; i < bytes; i += 32 * 16)
    dev::cp_async16(static_cast<u8*>(to) + i, at<u8>(from + i));
}

// Warp 0: starts fetching instance `n`, if there is one. One group of copies in either case.
ARK_DEVICE void fetch_instance(const Block& b, i32 n, i32 first_wait, i32 waits, i32 first_message,
                               i32 messages) {
  const Schedule all(b);
  if (n < all.count) {
    const InstanceBuffers to = instance_buffers(b, n);
    copy_table(b, to.instances, all.address(n), sizeof(Instance));
    copy_table(b, to.waits, b.rank->waits + static_cast<u64>(first_wait) * sizeof(Wait),
               static_cast<u32>(waits) * sizeof(Wait));
    if (kHasPeers)
      copy_table(b, to.messages, b.rank->messages + static_cast<u64>(first_message) * sizeof(Message),
                 static_cast<u32>(messages) * sizeof(Message));
  }
  dev::cp_async_commit();
}

// One thread a wait; the barrier makes what they acquired visible to the block. False: the block gives up.
ARK_APART bool await_instance(const LoopParameters& p, i32 n) {
  Block b = open_turn_block(p);
  const InstanceBuffers now = instance_buffers(b, n);
  const Instance& i = *now.instances;
  trace(b, i.phase, 0);
  const Waits own(b, i);
  if (b.thread < own.count) {
    const Wait& w = now.waits[own.first + b.thread];
    const bool credit = i.messages > 0 && i.readers_period == 0;
    const u64 needed = needed_of(b, w);
    const bool is_asked = is_awaited(w, credit);
    if (kHasPeers && is_asked && w.wide != 0) {
      await_peer(b, {credit ? LoopWait::kCredit : LoopWait::kArrival, i.phase, i.trip}, w, needed);
    } else if (is_asked && b.p.barrier == 0) {
      wait_reached<dev::Scope::gpu>(b, {LoopWait::kPhase, i.phase, i.trip}, at<const u32>(w.counter),
                                    static_cast<u32>(needed));
    }
  }
  return !stopped_after_waits(b);
}

// This processor's share of an instance. All raise its counter where messages are counted, and in the mode of barriers.
ARK_APART Share share_of(const LoopParameters& p, i32 n, Lineup line) {
  const Block b = open_block(p, 0, 0);
  const Instance& i = *instance_buffers(b, n).instances;
  const Share share = share_at(b, line, i.base);
  return p.barrier != 0 || (kHasPeers && i.messages > 0 && !tells_ranks(b, i)) ? Share{share.tiles, 1}
                                                                               : share;
}

// Runs instance `n`: one body on this processor's tiles. What does not depend on other instances is worked out before
// these are waited for.
template <class Body>
ARK_APART void run_case(const LoopParameters& p, i32 n) {
  Block b = open_turn_block(p);
  const InstanceBuffers now = instance_buffers(b, n);
  const Call call{b, *now.instances, now.messages};
  const Lineup line = Body::grid(call);
  Share share = share_of(p, n, line);
  if constexpr (Body::kIsLeftOut) {
    if (is_left_out(b, call.i)) share = left_out(b, call.i);
  }
  if (b.thread == 0) b.words->raises = share.raises;
  if (share.raises == 0) return;
  if constexpr (Body::kSends) {
    const Tiles sent = Body::bytes(call, {0, line.grid});
    if (b.thread == 0) b.words->sent_bytes = sent.last;
  }
  Body::prepare(call, share.tiles);
  if (!await_instance(p, n)) return;
  trace(b, call.i.phase, 1);
  if (share.tiles.first < share.tiles.last) Body::run(call, share.tiles);
  trace(b, call.i.phase, 2);
}

// The first instances of a step.
ARK_APART void start_step(const LoopParameters& p) {
  Block b = open_turn_block(p);
  if (b.warp == 0) {
    const Schedule all(b);
    const Instance* first = at<const Instance>(all.instances);
    ARK_ROLLED
    for (i32 n = 0; n < kFetchAhead; ++n) {
      const Instance& i = first[dev::min(n, all.count - 1)];
      fetch_instance(b, n, i.first_wait, i.waits, i.first_message, i.messages);
    }
  }
  clear_lamport(b);
  if (b.warp == 0) dev::cp_async_wait<kFetchAhead - 1>();
  consumers_sync();
  fence_parts(b);
  raise_skipped(b);
}

// Starts fetching what follows instance `n`, into the buffers of the one before. Returns the instance's variant, or
// kNoVariant behind the last instance.
inline constexpr int kNoVariant = -1;
ARK_APART int start_instance(const LoopParameters& p, i32 n) {
  Block b = open_turn_block(p);
  if (n == Schedule(b).count) return kNoVariant;
  const Instance& i = *instance_buffers(b, n).instances;
  if (b.warp == 0) {
    dev::sync_warp();  // thread 0 has read them for the last time
    fetch_instance(b, n + kFetchAhead, i.ahead_first_wait, i.ahead_waits, i.ahead_first_message,
                   i.ahead_messages);
  }
  return i.variant;
}

// Behind instance `n`: the next one is there, and whom it concerns is told. False: the block gives up.
ARK_APART bool end_instance(const LoopParameters& p, i32 n) {
  Block b = open_turn_block(p);
  if (b.warp == 0 && !ARK_BUG(missing_copy_wait)) dev::cp_async_wait<kFetchAhead - 1>();
  if (ARK_BUG(signal_without_barrier) ? has_stopped(b) : consumers_stopped(b)) {
    if (b.warp == 0) dev::cp_async_wait<0>();  // no copy may be on its way when the block ends
    const Instance& i = *instance_buffers(b, n).instances;
    // Who waited for words left no record; those of peers have a deadline.
    const bool is_late = tells_ranks(b, i) && (i.readers_period > 0 || is_by_norm(b, i)) && !is_stopped(b);
    const LoopWait what = is_late ? LoopWait::kArrival : LoopWait::kPhase;
    if (b.thread == 0) give_up(p, what, i.phase, i.trip, b.step, 0, 0, is_late);
    return false;
  }
  if (b.thread != 0 || b.words->raises == 0) return true;
  const InstanceBuffers now = instance_buffers(b, n);
  signal_instance(b, {b, *now.instances, now.messages});
  return true;
}

// All instances of a turn's step. False: the block gives up.
template <class Cases>
ARK_DEVICE bool run_instances(const LoopParameters& p) {
  start_step(p);
  for (i32 n = 0;; ++n) {
    const int variant = start_instance(p, n);
    if (variant == kNoVariant) return true;
    Cases::run(variant, p, n);
    if (!end_instance(p, n)) return false;
  }
}

// ---- the loop

ARK_DEVICE void set_up(const LoopParameters& p) {
  const int rank = dev::block_id() / p.processors;
  const SharedLayout layout = shared_layout(p.stages);
  const u32* from = at<const u32>(p.ranks) + static_cast<u64>(rank) * (sizeof(RankTables) / 4);
  u32* to = reinterpret_cast<u32*>(dev::shared() + layout.rank);
  ARK_ROLLED
  for (u32 i = static_cast<u32>(dev::thread_id()); i < sizeof(RankTables) / 4; i += kThreads)
    to[i] = dev::ld_nc(from + i);
  if (dev::thread_id() == 0) {
    BlockWords* words = reinterpret_cast<BlockWords*>(dev::shared() + layout.words);
    *words = {};
    words->rank_index = rank;
    words->processor = dev::block_id() % p.processors;
    words->turn = p.first_turn;
    words->stages[0] = words->stages[1] = p.stages;
  }
  if (dev::thread_id() < p.stages)
    init_stage(reinterpret_cast<dev::Mbarrier*>(dev::shared() + layout.barriers), dev::thread_id());
  if (!ARK_BUG(missing_init_barrier)) dev::sync();
}

// Both sides meet once a turn, behind its opening; a block that gives up opens no turn, but meets as if.
template <class Cases>
ARK_DEVICE void consume(const LoopParameters& p) {
  for (;;) {
    const bool run = open_turn(p);
    both_sides_sync();
    if (!run) return;
    const bool is_done = run_instances<Cases>(p) && close_step(p);
    const Block b = open_block(p, 0, 0);
    // All have read it for the last time, before the barrier that they met at.
    if (b.thread == 0) ++b.words->turn;
    if (!consumers_stopped(b, !is_done)) continue;
    if (b.thread == 0) b.words->leave[b.words->turn % 2] = 1;
    both_sides_sync();
    return;
  }
}

// The parameters in shared memory: read through an address, those of a kernel take longer (1 % of a step).
ARK_DEVICE const LoopParameters& shared_parameters(const LoopParameters& p) {
  LoopParameters& copy =
      *reinterpret_cast<LoopParameters*>(dev::shared() + shared_layout(p.stages).parameters);
  if (dev::thread_id() == 0) copy = p;
  dev::sync();
  return copy;
}

static_assert(kConsumers * kConsumerRegisters + (kThreads - kConsumers) * kStreamingRegisters <=
              kThreads * kLaunchRegisters);
template <class Cases>
ARK_DEVICE void run_loop(const LoopParameters& argument) {
  const LoopParameters& p = shared_parameters(argument);
  set_up(p);
  if (dev::warp_id() < kConsumerWarps) {
    dev::take_registers<kConsumerRegisters>();
    consume<Cases>(p);
  } else {
    dev::give_registers<kStreamingRegisters>();
    if (dev::warp_id() == kConsumerWarps) produce(p);
  }
}

}  // namespace ark::cuda
