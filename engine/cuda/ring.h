// The ring of weights in a block's shared memory: its stages, which the streaming warp fills and consumers free, each
// with two barriers (`full`, `empty`); and its making.
#pragma once

#include "engine/cuda/step_begin.h"

namespace ark::cuda {

// ---- by consumers

// That of a turn. The stages beyond p.stages lie before the others, where bodies leave the end of their scratch to
// them; of fewer stages the bytes of the first ones are the scratch's.
ARK_DEVICE void open_ring(Block& b, u64 turn) {
  b.stages = b.words->stages[turn % 2];
  b.ring = dev::shared() + shared_layout(b.p.stages).ring - (b.stages - b.p.stages) * kStageBytes;
}

// All consumer threads, as a body begins; and behind a barrier that all have passed since.
ARK_DEVICE void take_ring(Block& b) {
  b.cursor = b.words->cursor;
  open_ring(b, b.words->turn + ARK_BUG(ring_of_other_turn));
}
ARK_DEVICE void leave_cursor(const Block& b) {
  if (b.thread == 0) b.words->cursor = b.cursor;
}

ARK_DEVICE const u8* stage_at(const Block& b, const RingCursor& cursor) {
  return b.ring + cursor.stage * kStageBytes;
}

// Arrivals that free a stage, of the warps that take its piece.
inline constexpr int kStageReaders = kHasWideTiles ? kWideReaders : 2;
static_assert(warps_of_piece(kRowBlock, true) <= kStageReaders);

// Of the round that the cursor's stage is in.
ARK_DEVICE u32 parity_of(const RingCursor& cursor) {
  return ARK_BUG(missing_mbarrier_phase) ? 0 : cursor.parity;
}
// A parity tells two rounds apart, and a warp that skips stages may be further ahead: so that the stage's round has
// begun is asked first.
ARK_DEVICE bool is_full(const Block& b, const RingCursor& cursor, u32 parity) {
  return static_cast<i32>(dev::ld_shared_relaxed(&b.words->opened) - cursor.passed) > 0 &&
         dev::mbarrier_try_wait(b.full + cursor.stage, parity);
}

// A consumer warp: whether the bytes of the cursor's stage are there. False, from then on for all stages: the
// block gives up; the body goes on to its end without weights, since other warps wait at its barriers.
ARK_DEVICE bool acquire_stage(Block& b, const RingCursor& cursor) {
  if (b.gave_up) return false;
  const u32 parity = parity_of(cursor);
  const bool ready = wait_until(b, {LoopWait::kWeights}, b.full + cursor.stage, parity,
                                [&](u64&) { return is_full(b, cursor, parity); });
  // One answer for the warp, whose lanes have waited each for itself and now are together again: what follows
  // is for whole warps.
  b.gave_up = dev::ballot(!ready) != 0;
  return !b.gave_up;
}

// The same by a warp whose registers hold more than a call would leave it: wait_without_calls().
ARK_DEVICE bool acquire_stage_without_calls(Block& b, const RingCursor& cursor,
                                            dev::Site site = dev::Site::here()) {
  if (b.gave_up) return false;
  const bool ready = wait_without_calls(
      b, b.full + cursor.stage, cursor.parity, [&] { return is_full(b, cursor, cursor.parity); }, site);
  b.gave_up = dev::ballot(!ready) != 0;
  return !b.gave_up;
}

// Of a warp that is one of `warps` that read a stage.
ARK_DEVICE int releasing_lanes(const Block& b, int warps) {
  return ARK_BUG(missing_release) && b.warp == 3 ? 0 : kStageReaders / warps;
}

// A consumer warp: it is through with the cursor's stage, if it got it; one of `warps` that read the stage.
ARK_DEVICE void release_stage(Block& b, const RingCursor& cursor, int warps) {
  if (b.gave_up) return;
  if (!ARK_BUG(release_without_sync_warp)) dev::sync_warp();
  if (b.lane < releasing_lanes(b, warps)) dev::mbarrier_arrive(b.empty + cursor.stage);
}

// ---- its making

// `full`: of stage 0. Others may use the stage behind a barrier.
ARK_DEVICE void init_stage(dev::Mbarrier* full, int stage) {
  dev::mbarrier_init(full + stage, dev::kCopyAheadArrivals);
  dev::mbarrier_init(full + kMaxStages + stage, kStageReaders + ARK_BUG(empty_count));
  dev::mbarrier_init_fence();
}
ARK_DEVICE void invalidate_stage(dev::Mbarrier* full, int stage) {
  dev::mbarrier_inval(full + stage);
  dev::mbarrier_inval(full + kMaxStages + stage);
}

// A ring for a step of so many rows, of which no stage is in use. What consumers have written to the scratch, or to
// stages that were the scratch's, copies may take the place of behind the next barrier.
ARK_DEVICE void choose_ring(const Block& b, i32 rows) {
  BlockWords& words = *b.words;
  const i32 before = words.stages[(words.turn + 1) % 2];
  const i32 stages = rows >= b.p.wide_from ? wide_stages(b.p.stages, kTiles)
                                           : ring_stages(b.p.stages, rows, b.p.leaving_rows, kScratchBytes);
  if (b.thread == 0) words.stages[words.turn % 2] = stages;
  if (stages == before || ARK_BUG(stale_ring)) return;
  if (b.thread == 0) words.cursor = {0, 0, words.cursor.passed};
  if (b.thread < before) invalidate_stage(b.full, b.thread);
  if (b.thread < stages) init_stage(b.full, b.thread);
#if ARK_HAS_BULK
  if (!ARK_BUG(missing_ring_fence)) dev::fence_proxy_async();
#endif
}

}  // namespace ark::cuda
