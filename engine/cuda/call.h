// What device code of the loop shares: addresses, the view of a block, waiting.
#pragma once

#include "dma/device.h"
#include "engine/cuda/dealing.h"

#if defined(__CUDACC__)
#define ARK_ROLLED _Pragma("unroll 1")
#else
#define ARK_ROLLED
#endif

namespace ark::cuda {

namespace dev = ark::dev;

template <class T>
ARK_DEVICE T* at(u64 address) {
  return reinterpret_cast<T*>(address);
}

// The ring of weights as one side sees it: a stage and how often the ring was gone through.
struct RingCursor {
  u32 stage = 0, parity = 0;
  u32 passed = 0;  // stages before this one, over all rounds, modulo 2^32
  ARK_DEVICE void advance(int stages) {
    ++passed;
    if (++stage == static_cast<u32>(stages)) stage = 0, parity ^= 1;
  }
  ARK_DEVICE void advance(int by, int stages) {
    passed += static_cast<u32>(by);
    stage += static_cast<u32>(by);
    while (stage >= static_cast<u32>(stages)) stage -= static_cast<u32>(stages), parity ^= 1;
  }
  ARK_DEVICE void rewind(int by, int stages) {
    passed -= static_cast<u32>(by);
    while (stage < static_cast<u32>(by)) stage += static_cast<u32>(stages), parity ^= 1;
    stage -= static_cast<u32>(by);
  }
};

// Words of a block in shared memory.
struct BlockWords {
  u32 stopped;   // somebody gives up; any thread may store it at any time: decide by consumers_stopped()
  u32 leave[2];  // whether the turn is the last; by turn % 2, since the producer may read it late
  u32 opened;    // stages that the streaming warp has begun to fill, modulo 2^32
  i32 last_arrival;
  i32 processor, rank_index;
  i32 raises;      // thread 0: what this processor adds to the instance's counter; 0: it takes no part
  i64 sent_bytes;  // of the message that this instance sends
  // The consumers', which thread 0 writes; between bodies: the loop's registers are few.
  u64 turn;
  RingCursor cursor;
  u32 padding;                // which is written, too: compilers load the cursor by 16 bytes
  i32 stages[2];              // of the ring; by turn % 2, as `leave`
  i32 first_tile, last_tile;  // of attention, and of a product with wide tiles
  // The turn's half of the rows that are told, plus 1; 0: it has none. Rows, at most, that the other half has.
  i32 lamport, lamport_before;
  // Of a product: its x, floats from row to row, and whether rows are told (engine/cuda/lamport.h); whether sums are.
  u64 x;
  i32 x_pitch, x_told, tells_sums;
  i32 parts;  // the turn's half of the parts of sums over ranks, plus 1; 0: it has none
};
static_assert(sizeof(BlockWords) <= kWordsBytes);

// A thread's view of its block.
struct Block {
  const LoopParameters& p;
  const RankTables* rank;  // in shared memory, as all below
  BlockWords* words;
  i32* vals;  // of this turn
  dev::Mbarrier* full;
  dev::Mbarrier* empty;
  u8* scratch;
  int thread, warp, lane, processor, rank_index;
  u64 step;  // from 0
  // Of the streaming warp, and of a body that takes weights: take_ring().
  u8* ring = nullptr;
  int stages = 0;
  RingCursor cursor;
  bool gave_up = false;  // this warp, inside a body: it waits for no more weights
};

// `turn`: whose vals.
ARK_DEVICE Block open_block(const LoopParameters& p, u64 step, u32 turn) {
  u8* shared = dev::shared();
  const SharedLayout s = shared_layout(p.stages);
  dev::Mbarrier* barriers = reinterpret_cast<dev::Mbarrier*>(shared + s.barriers);
  BlockWords* words = reinterpret_cast<BlockWords*>(shared + s.words);
  return {p,
          reinterpret_cast<const RankTables*>(shared + s.rank),
          words,
          reinterpret_cast<i32*>(shared + s.vals) + turn % 2 * kMaxVals,
          barriers,
          barriers + kMaxStages,
          shared + s.scratch,
          dev::thread_id(),
          dev::warp_id(),
          dev::lane_id(),
          words->processor,
          words->rank_index,
          step};
}

// In the step of the consumers' turn.
ARK_DEVICE Block open_turn_block(const LoopParameters& p) {
  const u64 turn = reinterpret_cast<const BlockWords*>(dev::shared() + shared_layout(p.stages).words)->turn;
  return open_block(p, p.first_step + (turn - p.first_turn) - 1, static_cast<u32>(turn));
}

// All consumer threads and the streaming warp of the block, of which further warps have ended.
ARK_DEVICE void both_sides_sync(dev::Site site = dev::Site::here()) {
  dev::bar_sync(2, kConsumers + 32, site);
}
// All consumer threads of the block.
ARK_DEVICE void consumers_sync(dev::Site site = dev::Site::here()) { dev::bar_sync(1, kConsumers, site); }

// take(e, load(e)) for elements [first, last), each thread's kConsumers apart: kCount loads under way at once, where a
// loop of one would wait for each. load() is called for elements of the thread's own, maybe twice; take() stands in
// the code once.
template <int kCount, class Index, class Load, class Take>
ARK_DEVICE void in_turns(const Block& b, Index first, Index last, Load load, Take take) {
  ARK_ROLLED
  for (Index begin = first + b.thread; begin < last; begin += kCount * kConsumers) {
    decltype(load(begin)) v[kCount];
    ARK_UNROLL
    for (int i = 0; i < kCount; ++i)
      v[i] = load(begin + i * kConsumers < last ? begin + i * kConsumers : begin);
    const Index end = dev::min(last, begin + kCount * kConsumers);
    ARK_ROLLED
    for (Index e = begin; e < end; e += kConsumers) {
      take(e, v[0]);
      ARK_UNROLL
      for (int i = 0; i + 1 < kCount; ++i) v[i] = v[i + 1];
    }
  }
}

// ---- giving up. The threads of a block must leave as one: whoever gives up says so, and goes on to the next
// barrier that asks.

ARK_DEVICE bool has_stopped(const Block& b) { return dev::ld_shared_relaxed(&b.words->stopped) != 0; }

// consumers_sync(), and whether the block gives up: the same answer for all consumer threads, though the streaming
// warp may give up between two threads' looks. Lanes that have waited each for itself come together.
ARK_DEVICE bool consumers_stopped(const Block& b, bool vote = false, dev::Site site = dev::Site::here()) {
  dev::sync_warp(site);
  return dev::bar_sync_or(1, kConsumers, vote || has_stopped(b), site);
}

ARK_DEVICE bool is_stopped(const Block& b) {
  Control* control = at<Control>(b.p.control);
  if (dev::ld_relaxed<dev::Scope::gpu>(&control->abort) != 0) return true;
  if (dev::block_id() != 0) return false;
  // The leader alone looks at the host's words; it tells the others.
  if (dev::ld_relaxed<dev::Scope::sys>(&at<LoopControl>(b.p.host)->abort.value) == 0) return false;
  dev::st_relaxed<dev::Scope::gpu>(&control->abort, 1u);
  return true;
}

struct WaitPoint {
  LoopWait what;
  i32 phase = -1, trip = -1;
};

inline constexpr Side kStreamingSide = dev::kMovesRegisters ? Side::kStreaming : Side::kConsumers;

// Ends the loop: the block's record, and the words that stop everybody. Of the threads of a block that give
// up the first writes the record.
template <Side kSide = Side::kConsumers>
ARK_APART void give_up(const LoopParameters& p, LoopWait what, i32 phase, i32 trip, u64 step, u64 seen,
                       u64 needed, bool deadline) {
  const Block b = open_block(p, step, 0);
  LoopControl* host = at<LoopControl>(p.host);
  FaultRecord* record = at<FaultRecord>(b.p.host + sizeof(LoopControl)) + dev::block_id();
  // `what` is claimed as all ones first: before others of the block learn of it, who would write why they leave.
  const bool is_first = dev::atom_cas<dev::Scope::sys>(&record->what, 0u, ~0u) == 0;
  dev::st_shared_relaxed(&b.words->stopped, 1);
  if (!is_first) return;
  record->rank = b.rank->rank;
  record->processor = b.processor;
  record->phase = phase;
  record->trip = trip;
  record->step = b.step + 1;
  record->seen = seen;
  record->needed = needed;
  dev::st_relaxed<dev::Scope::sys>(&record->what, static_cast<u32>(what));
  dev::st_release<dev::Scope::sys>(&record->kind, deadline ? 2u : 1u);  // dma::FaultKind
  dev::red_release_add<dev::Scope::sys>(&host->faults.value, 1u);
  dev::st_release<dev::Scope::sys>(&host->abort.value, 1u);
  dev::st_release<dev::Scope::gpu>(&at<Control>(b.p.control)->abort, 1u);
}

// What a wait that has lasted looks at from time to time. Returns when it first did; 0: the block gives up.
template <Side kSide>
ARK_APART u64 look_up(const LoopParameters& p, LoopWait what, i32 phase, i32 trip, u64 step, u64 seen,
                      u64 needed, u64 start) {
  const u64 now = dev::global_timer_ns();
  if (start == 0) start = now;
  const bool late = now - start > p.deadline_ns;
  if (!late && !is_stopped(open_block(p, step, 0))) return start;
  give_up<kSide>(p, what, phase, trip, step, seen, needed, late);
  return 0;
}

// The loop of every wait: calls done(seen), which says whether it is over, until it is. False: the block
// gives up. `word` and `needed` are for reports.
template <Side kSide = Side::kConsumers, class Done>
ARK_DEVICE bool wait_until(Block& b, WaitPoint point, const void* word, u64 needed, Done done,
                           dev::Site site = dev::Site::here()) {
  u64 seen = 0, start = 0;
  const u32 every = ARK_BUG(impatient) ? 1 : 64;  // no bug: so that tests may end a loop anywhere
  for (u32 tries = 1;; ++tries) {
    if (done(seen)) return true;
    if (tries % every == 0) {
      start = look_up<kSide>(b.p, point.what, point.phase, point.trip, b.step, seen, needed, start);
      if (start == 0) return false;
    }
    dev::pause(word, seen, needed, 0, site);
  }
}

// The same in a function that calls none, so that its callers keep their registers: it writes no record, nor knows a
// deadline. Others do, who wait for what its block does then: the streaming warp for a free stage, blocks for an
// instance or for the step's end.
template <class Done>
ARK_DEVICE bool wait_without_calls(const Block& b, const void* word, u64 needed, Done done,
                                   dev::Site site = dev::Site::here()) {
  const u32 every = ARK_BUG(impatient) ? 1 : 64;
  for (u32 tries = 1; !done(); ++tries) {
    if (tries % every == 0 && (has_stopped(b) || is_stopped(b))) {
      dev::st_shared_relaxed(&b.words->stopped, 1);
      return false;
    }
    dev::pause(word, 0, needed, 0, site);
  }
  return true;
}

// Acquire: see wait_reached().
template <dev::Scope S, class T>
ARK_DEVICE T load_awaited(const T* counter, dev::Site site) {
  if (S == dev::Scope::sys && ARK_BUG(relaxed_peer_wait)) return dev::ld_relaxed<S>(counter, site);
  return dev::ld_acquire<S>(counter, site);
}
template <dev::Scope S, class T>
ARK_DEVICE bool wait_reached_here(Block& b, WaitPoint point, const T* counter, T needed, dev::Site site) {
  return wait_until(
      b, point, counter, needed,
      [&](u64& seen) {
        const T value = load_awaited<S>(counter, site);
        seen = value;
        const T ahead = value - needed;
        return ahead < (T{1} << (sizeof(T) * 8 - 1));  // signed: not behind
      },
      site);
}
template <dev::Scope S>
ARK_APART bool wait_reached_apart(const LoopParameters& p, LoopWait what, i32 phase, i32 trip, u64 step,
                                  const u64* counter, u64 needed, dev::Site site) {
  Block b = open_block(p, step, 0);
  return wait_reached_here<S>(b, {what, phase, trip}, counter, needed, site);
}

// Of a wait for what a peer stores, each time that it is not there: that may be for ever, so the block stops at the
// deadline, and end_instance() says why.
ARK_DEVICE void watch_peers(const Block& b, u32& tries, u64& start) {
  if (++tries % 64 != 0) return;
  const u64 now = dev::global_timer_ns();
  if (start == 0) start = now;
  if (now - start > b.p.deadline_ns) dev::st_shared_relaxed(&b.words->stopped, 1);
}

// Until the counter has reached `needed`, modulo its width. Acquire: pairs with the raisers' releases. Phases
// wait for words of 32 bits, most often; the others are functions of their own.
template <dev::Scope S, class T>
ARK_DEVICE bool wait_reached(Block& b, WaitPoint point, const T* counter, T needed,
                             dev::Site site = dev::Site::here()) {
  if constexpr (sizeof(T) == 4) {
    return wait_reached_here<S>(b, point, counter, needed, site);
  } else {
    return wait_reached_apart<S>(b.p, point.what, point.phase, point.trip, b.step, counter, needed, site);
  }
}

// ---- what instances wait for

// What a wait's word must reach in this step.
ARK_DEVICE u64 needed_of(const Block& b, const Wait& w) {
  const u64 needed = w.offset + w.stride * b.step;
  if (w.wide != 0) return needed;
  return needed - (ARK_BUG(wrong_epoch) ? w.stride : 0) - ARK_BUG(off_by_one_wait) + ARK_BUG(greedy_wait);
}
// Whether the block's step is one whose instances tell others by what they store (engine/cuda/lamport.h).
ARK_DEVICE bool tells(const Block& b) { return b.words->lamport != 0; }
// Whether ranks exchange the instance's numbers so: its messages are left out.
ARK_DEVICE bool tells_ranks(const Block& b, const Instance& i) {
  return kHasPeers && i.parts_at != 0 && b.words->parts != 0;
}
// Whether the norm behind adds up its ranks' parts; or this norm does.
ARK_DEVICE bool is_by_norm(const Block& b, const Instance& i) {
  return i.by_norm != 0 && tells(b) && tells_ranks(b, i);
}
// A send, or such a sum, that does nothing then; but, where it settles, it comes behind those before it.
ARK_DEVICE bool is_left_out(const Block& b, const Instance& i) {
  return tells_ranks(b, i) && i.messages > 0 && (i.readers_period == 0 || is_by_norm(b, i));
}
// Of an instance's waits, those of this step.
struct Waits {
  i32 first, count;
  ARK_DEVICE Waits(const Block& b, const Instance& i)
      : first(tells(b) ? 0 : i.few_waits), count(i.waits - (tells(b) ? i.more_waits : i.few_waits)) {
    // Of the others the last ones are for messages.
    if (!tells(b) && tells_ranks(b, i)) count -= i.messages;
  }
};
// Every wait is, but where a bug is seeded. `credit`: it is a receiver's, not a message.
ARK_DEVICE bool is_awaited(const Wait& w, bool credit) {
  return w.wide == 0 ? !ARK_BUG(missing_phase_wait) : credit || !ARK_BUG(missing_arrival_wait);
}
// Behind the waits. Whether the block gives up.
ARK_DEVICE bool stopped_after_waits(const Block& b) {
  return ARK_BUG(missing_barrier_after_wait) ? has_stopped(b) : consumers_stopped(b);
}

// Release: hands on what the acquire of a peer's word has brought.
ARK_DEVICE void relay_to(u64* relay, u64 value) {
  if (ARK_BUG(relaxed_relay)) return dev::st_relaxed<dev::Scope::gpu>(relay, value);
  dev::st_release<dev::Scope::gpu>(relay, value);
}
// A word that a peer raises.
ARK_DEVICE bool await_counter(Block& b, WaitPoint point, const u64* counter, u64 needed) {
  if (ARK_BUG(narrow_peer_wait)) return wait_reached<dev::Scope::gpu>(b, point, counter, needed);
  return wait_reached<dev::Scope::sys>(b, point, counter, needed);
}

// A peer's message, or its credit.
ARK_DEVICE void await_peer(Block& b, WaitPoint point, const Wait& w, u64 needed) {
  const u64* counter = at<const u64>(w.counter);
  u64* relay = at<u64>(w.relay);
  if (w.relay != 0 && b.processor != 0) {
    wait_reached<dev::Scope::gpu>(b, point, relay, needed);
  } else if (await_counter(b, point, counter, needed) && w.relay != 0) {
    relay_to(relay, needed);
  }
}

// ---- what a body sees

// Apart: the division is much code.
ARK_APART u64 slot_at(const Message& m, u64 number) { return m.slots + number % m.slot_count * m.slot_bytes; }

struct Call {
  Block& b;
  const Instance& i;
  const Message* messages;

  ARK_DEVICE i32 size(Size s) const { return s >= 0 ? s : b.vals[~s]; }
  ARK_DEVICE i64 product(const Size (&sizes)[4]) const {
    return static_cast<i64>(size(sizes[0])) * size(sizes[1]) * size(sizes[2]) * size(sizes[3]);
  }
  // Of a message in this step: its number, and its slot.
  ARK_DEVICE u64 number(const Message& m) const {
    const bool is_next = i.readers_period > 0 ? ARK_BUG(wrong_slot) : ARK_BUG(wrong_sent_slot);
    return b.step * m.per_step + m.ordinal + is_next;
  }
  ARK_DEVICE u64 slot(const Message& m) const { return slot_at(m, number(m)); }
};

// An instance by how many bytes behind dev::shared() it lies: one register, not two.
ARK_DEVICE u32 instance_offset(const Call& call) {
  return static_cast<u32>(reinterpret_cast<const u8*>(&call.i) - dev::shared());
}
ARK_DEVICE const Instance& instance_at(u32 offset) {
  return *reinterpret_cast<const Instance*>(dev::shared() + offset);
}

// Tiles of `own` that are run: all of them.
ARK_DEVICE Tiles run_of(Tiles own, i64 grid, int processor) {
  if (ARK_BUG(off_by_one_tile) && processor > 0 && own.first < own.last) return {own.first, own.last - 1};
  if (ARK_BUG(overlapping_tiles) && own.last < grid) return {own.first, own.last + 1};
  return own;
}
template <Side kSide = Side::kConsumers>
ARK_DEVICE Share share_at(const Block& b, const Lineup& line, i32 base) {
  const Share all = dealt<kSide>(line, b.processor, base, b.p.processors);
  return {run_of(all.tiles, line.grid, b.processor), all.raises};
}

// Tables are constant, but lie in memory that a copy engine wrote before the launch.
ARK_DEVICE Stream load_stream(u64 streams, int index) {
  Stream s;
  const dev::u32x4* from = at<dev::u32x4>(streams) + index * (sizeof(Stream) / 16);
  dev::u32x4* to = reinterpret_cast<dev::u32x4*>(&s);
  ARK_UNROLL
  for (int i = 0; i < static_cast<int>(sizeof(Stream) / 16); ++i) to[i] = dev::ld_nc(from + i);
  return s;
}

}  // namespace ark::cuda
