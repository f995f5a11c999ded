// Causal attention over paged keys and values, with grouped queries, window, softcap, slopes and sinks.
//
// Tile: item, KV head, split (AttentionTile). A split is split_keys() keys by absolute position; of each
// kAttentionBlock keys in it, one of eight runs has the w-th 32, which are a warp's. It keeps an online softmax per row
// (arXiv:1805.02867), runs are merged in order, then splits in order: what a row comes to depends on its own position
// only. X: what is stored (bodies/parts.h).
//
// Keys and values of 16 bits are multiplied on tensor cores, whatever the rows, others by multiply-adds. There tiles of
// few rows are taken several at once, and those of many by strips, to the same bits.
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

// Runs tiles from the place on, and tells how many. Behind a barrier all are through with those before: others are
// opened in their places, and their keys asked for behind the next barrier. A function of its own, as those below: its
// registers are not beside those of the loop around it.
template <class Way>
ARK_APART int attend(const LoopParameters& p, u32 instance, TilePlace place) {
  Block b = open_turn_block(p);
  const Call call{b, instance_at(instance), nullptr};
  return Way(call).attend(place.next(), place.before());
}

// Whether the block's tile number `n` is taken by strips: it has rows enough, and the step leaves all of the scratch to
// bodies.
ARK_APART bool is_by_strips(const LoopParameters& p, u32 instance, int n) {
  const Block b = open_block(p, 0, 0);
  return instance_at(instance).attention.softcap == 0 && leaves_all_scratch(b) &&
         has_many_rows(open_tile(b, n).task.rows);
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
    static_assert(kTilesAhead <= kConsumerWarps, "a warp each");
    if (call.b.warp < count) open_ahead(call.b.p, instance, first + call.b.warp, call.b.warp);
    if (!ARK_BUG(asked_before_open)) consumers_sync();
    if constexpr (kIsMma) find_bundle<Way>(call.b.p, instance, 0, 0);
    ask_ahead<E, kKey, kValue>(call.b.p, instance, 0, count);
  }
  ARK_DEVICE static void run(const Call& call, Tiles tiles) {
    Way(call).start();
    const u32 instance = instance_offset(call);
    const int count = static_cast<int>(tiles.last - tiles.first);
    ARK_ROLLED
    for (TilePlace place; place.next() < count;) {
      int tiles_run;
      if constexpr (kHasStrips) {
        tiles_run = is_by_strips(call.b.p, instance, place.next())
                        ? attend<AttentionByStrips<E, kKey, kValue, X>>(call.b.p, instance, place)
                        : attend<Way>(call.b.p, instance, place);
      } else {
        tiles_run = attend<Way>(call.b.p, instance, place);
      }
      place = place.behind(tiles_run);
    }
  }
};

}  // namespace ark::cuda
