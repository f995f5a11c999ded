// Rows that say themselves that they are there, in steps of at most RankTables::told_rows, which are said to tell: who
// waits for them looks at the data, not at a counter, which saves the writer's release and the reader's trip for the
// data behind the counter's. A 32-bit word holds kAbsent until it is stored (flags in the data, after Lamport: as in
// NCCL's LL protocol and TensorRT-LLM's all-reduce). Stores and loads are relaxed: a word orders nothing but itself, so
// whatever else an instance needs of the writer is waited for by counters (Instance::few_waits). What is exchanged so:
// engine/cuda/lamport_plan.h.
//
// A row of x has one writer and many readers. Steps take turns with two halves of the memory; a step clears the half
// of the one before, of whose rows all readers are through. Sums that tiles share have one reader, who clears what it
// has taken. Either is ordered before the next stores there by the border between two steps, through which all blocks
// of a rank release and acquire.
#pragma once

#include "engine/cuda/ring.h"

namespace ark::cuda {

inline constexpr u32 kAbsent = 0xffffffff;

// As it is stored: of the NaNs one that is not kAbsent.
ARK_DEVICE float word_of(float v) { return v == v ? v : __builtin_bit_cast(float, kAbsent >> 1); }
ARK_DEVICE dev::f32x4 words_of(const dev::f32x4& v) {
  return {word_of(v.x), word_of(v.y), word_of(v.z), word_of(v.w)};
}

ARK_DEVICE dev::u32x4 absent() { return {kAbsent, kAbsent, kAbsent, kAbsent}; }
template <class Four>
ARK_DEVICE bool is_there(const Four& four) {
  const auto v = __builtin_bit_cast(dev::u32x4, four);
  return v.x != kAbsent && v.y != kAbsent && v.z != kAbsent && v.w != kAbsent;
}

// Rows in memory.
struct Rows {
  float* first;
  i64 pitch;  // floats
  bool told;  // by their words
  ARK_DEVICE float* row(i64 r) const { return first + r * pitch; }
};
// Rows of `width` floats at `plain`; or of this step's half, of `place` in each of them, if there is one.
ARK_DEVICE Rows rows_at(const Block& b, u64 plain, i32 width, u64 place) {
  const i32 half = b.words->lamport;
  if (half == 0 || place == 0) return {at<float>(plain), width, false};
  const i64 pitch = b.rank->lamport_pitch;
  const i64 rows = ARK_BUG(half_of_few) ? kFewRows : b.rank->told_rows;
  return {at<float>(place) + (half - 1) * rows * pitch, pitch, true};
}

// ---- parts of sums over ranks (engine/cuda/rank_parts.h)

// From where in a rank's parts this step's rows begin; `place`: the instance's.
ARK_DEVICE i64 part_row(const Block& b, i32 place, i64 row) {
  return (static_cast<i64>(b.words->parts - 1) * b.rank->part_rows + row) * b.rank->part_pitch + place;
}
// Four elements of this rank's part, to all ranks, itself as well.
ARK_DEVICE void tell_ranks(const Block& b, i32 place, i32 row, i32 column, const dev::f32x4& v) {
  const i64 to = part_row(b, place, row) + column;
  ARK_ROLLED
  for (i32 r = 0; r < b.rank->ranks; ++r) {
    if (ARK_BUG(part_not_told) && r != b.rank->rank) continue;
    const u64 part = b.rank->parts_to[ARK_BUG(part_of_another_rank) ? 0 : r];
    dev::st_words<dev::Scope::sys>(at<dev::f32x4>(part) + to / 4, words_of(v));
  }
}

// ---- borders of steps

// All consumer threads, as a step of so many rows is opened: its half.
ARK_DEVICE void open_lamport(const Block& b, i32 rows, const LamportState& state) {
  const bool is_open = b.rank->lamport != 0 && rows <= b.rank->told_rows;
  if (b.thread != 0) return;
  b.words->lamport = is_open ? state.half + 1 : 0, b.words->lamport_before = state.before;
  if (kHasPeers) b.words->parts = rows <= b.rank->part_rows ? state.parts + 1 : 0;
}

// All consumer threads of all processors, in the step: the other half, as far as the step before such a one wrote it.
ARK_DEVICE void clear_lamport(const Block& b) {
  if (!tells(b) || ARK_BUG(half_not_cleared)) return;
  const i32 quarters = b.rank->lamport_pitch / 4;
  dev::u32x4* const other = at<dev::u32x4>(b.rank->lamport_rows) +
                            static_cast<i64>(2 - b.words->lamport) * b.rank->told_rows * quarters;
  ARK_ROLLED
  for (i32 i = b.processor * kConsumers + b.thread; i < b.words->lamport_before * quarters;
       i += b.p.processors * kConsumers)
    dev::st_words(other + i, absent());
}

// The instances of the step; in one that tells behind them the counters of those that it leaves out.
struct Schedule {
  u64 instances;
  i32 count;
  bool leaves_out;
  ARK_DEVICE explicit Schedule(const Block& b)
      : instances(b.rank->instances),
        count(b.rank->instance_count),
        leaves_out(kHasPeers && tells(b) && b.rank->skipped_count > 0) {
    if (!leaves_out) return;
    instances = address(count);
    count -= b.rank->skipped_count;
  }
  ARK_DEVICE u64 address(i32 n) const { return instances + static_cast<u64>(n) * sizeof(Instance); }
};

// Counters of instances that a step leaves out rise in it, too: nobody waits for them before its border.
ARK_DEVICE void raise_skipped(const Block& b) {
  const Schedule all(b);
  if (!all.leaves_out || b.processor + 1 != b.p.processors || ARK_BUG(skipped_not_raised)) return;
  const u64* const counters = at<const u64>(all.address(all.count));
  ARK_ROLLED
  for (i32 n = b.thread; n < b.rank->skipped_count; n += kConsumers)
    dev::red_relaxed_add<dev::Scope::gpu>(at<u32>(dev::ld_nc(counters + n)),
                                          static_cast<u32>(b.p.processors));
}

// All consumer threads, behind the loads of a step's parts of sums over ranks, and before the stores of the next one's:
// with these words a release and an acquire, so that whoever stores where a peer has cleared comes behind that.
ARK_DEVICE void fence_parts(const Block& b) {
  if (kHasPeers && b.words->parts != 0) dev::fence<dev::Scope::sys>();
}

}  // namespace ark::cuda
