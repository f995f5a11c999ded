// Causal attention over paged keys and values, with grouped queries, window, softcap, slopes and sinks.
//
// Tile: item, KV head, split (AttentionTile). A split is split_keys() keys by absolute position; of each
// kAttentionBlock keys in it, warp w takes the w-th 32. A warp keeps an online softmax per row (arXiv:1805.02867),
// warps are merged in order, then splits in order: what a row comes to depends on its own position only. Keys and
// values are read once for kRows rows. X: what is stored (bodies/parts.h).
//
// Keys and values of 16 bits are multiplied on tensor cores, whatever the rows, others by multiply-adds. Tiles of many
// rows are taken by strips, to the same bits.
#pragma once

#include "engine/cuda/bodies/attention_fma.h"
#include "engine/cuda/bodies/attention_mma.h"
#include "engine/cuda/bodies/attention_strips.h"

namespace ark::cuda {

template <bool kIsMma, class E, int kKey, int kValue, class X>
struct AttentionWay {
  using Type = AttentionByFma<E, kKey, kValue, X>;
};
template <class E, int kKey, int kValue, class X>
struct AttentionWay<true, E, kKey, kValue, X> {
  using Type = AttentionByMma<E, kKey, kValue, X>;
};

// Functions of their own: their registers are not beside those of the loop around them.
template <class Way>
ARK_APART void join_splits(const LoopParameters& p, u32 instance) {
  Block b = open_turn_block(p);
  const Call call{b, instance_at(instance), nullptr};
  const Way way(call);
  way.join(way.task().rows);
}

// Number `n` of the block's tiles. Whether it is one of several splits.
template <class Way>
ARK_APART bool attend(const LoopParameters& p, u32 instance, int n) {
  Block b = open_turn_block(p);
  const Call call{b, instance_at(instance), nullptr};
  const Way way(call);
  if (!way.open(n)) {
    if (!ARK_BUG(idle_without_barrier)) consumers_sync();  // behind it all are through with the tile before
    return false;
  }
  ARK_ROLLED
  for (i32 row0 = 0; row0 < way.task().rows; row0 += Way::kRows)
    way.run_rows(row0, dev::min(Way::kRows, way.task().rows - row0));
  return way.task().split_count > 1;
}

// The same of one that is taken by strips.
template <class Way>
ARK_APART bool attend_many(const LoopParameters& p, u32 instance, int n) {
  Block b = open_turn_block(p);
  const Call call{b, instance_at(instance), nullptr};
  const Way way(call);
  way.open(n);  // it has rows: is_by_strips()
  ARK_ROLLED
  for (i32 row0 = 0; row0 < way.task().rows; row0 += kRowsOfStrips)
    way.run_rows(row0, dev::min(kRowsOfStrips, way.task().rows - row0));
  if (!ARK_BUG(strips_left_early)) consumers_sync();  // all are through with the scratch
  return way.task().split_count > 1;
}
// Whether the block's tile number `n` is: it has rows enough, and the step leaves all of the scratch to bodies.
ARK_APART bool is_by_strips(const LoopParameters& p, u32 instance, int n, i32 value) {
  const Block b = open_block(p, 0, 0);
  return instance_at(instance).attention.softcap == 0 && b.words->stages[b.words->turn % 2] <= p.stages &&
         has_many_rows(open_tile(b, n).task.rows, value);
}

// Behind tile number `n`, which has barriers, all are through with the one before. In its place the last warp, which
// most often has little to merge, opens another one; all ask for its keys once they have met again.
template <class E, int kKey, int kValue>
ARK_APART void look_ahead(const LoopParameters& p, u32 instance, int n) {
  const Block b = open_block(p, 0, 0);
  constexpr int kOpened = kTilesAhead - 1, kAsked = kTilesAhead - 2;
  static_assert(kAsked > 0, "a tile is open before it is run");
  if (n > 1 && !is_behind_tiles(b, n + kAsked))
    ask_ahead<E, kKey, kValue>(p, instance, n + kAsked, n + kAsked + 1);
  const int next = n + kOpened;
  if (b.warp != kConsumerWarps - 1 || is_behind_tiles(b, next) || ARK_BUG(next_not_opened)) return;
  open_ahead(p, instance, b.words->first_tile + next, next);
}

template <class E, int kKey, int kValue, class X>
struct Attention : Quiet {
  static constexpr bool kIsMma = attends_on_tensor_cores(Kv<E>::kFormat, kKey, kValue);
  static constexpr bool kHasStrips = attends_by_strips(dev::kMovesRegisters, Kv<E>::kFormat, kKey, kValue);
  using Way = typename AttentionWay<kIsMma, E, kKey, kValue, X>::Type;

  ARK_DEVICE static i64 grid(const Call& call) {
    return static_cast<i64>(call.size(call.i.grid)) * call_splits(call.b);
  }
  ARK_DEVICE static void prepare(const Call& call, Tiles tiles) {
    const u32 instance = instance_offset(call);
    const i32 first = static_cast<i32>(tiles.first),
              count = dev::min(static_cast<i32>(tiles.last) - first, kTilesAhead);
    if (call.b.thread == 0)
      call.b.words->first_tile = first, call.b.words->last_tile = static_cast<i32>(tiles.last);
    if (call.b.warp < count) open_ahead(call.b.p, instance, first + call.b.warp, call.b.warp);
    if (!ARK_BUG(asked_before_open)) consumers_sync();
    ask_ahead<E, kKey, kValue>(call.b.p, instance, 0, count);
  }
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    Way(call).start();
    const u32 instance = instance_offset(call);
    ARK_ROLLED
    for (int n = 0; !is_behind_tiles(call.b, n); ++n) {
      bool is_split;
      if constexpr (kHasStrips) {
        is_split = is_by_strips(call.b.p, instance, n, kValue)
                       ? attend_many<AttentionByStrips<E, kKey, kValue, X>>(call.b.p, instance, n)
                       : attend<Way>(call.b.p, instance, n);
      } else {
        is_split = attend<Way>(call.b.p, instance, n);
      }
      if (is_split) join_splits<Way>(call.b.p, instance);
      if (n > 0) look_ahead<E, kKey, kValue>(call.b.p, instance, n);
    }
  }
};

}  // namespace ark::cuda
