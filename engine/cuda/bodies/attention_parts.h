// Parts of attention: scores of one element; what can be known of a tile before others are waited for; how parts of
// rows, of warps and of splits, are merged and written.
#pragma once

#include "engine/cuda/bodies/kv.h"
#include "engine/cuda/bodies/parts.h"

namespace ark::cuda {

ARK_APART float capped(float score, float cap) { return cap * dev::tanh(score / cap); }

// Scores are taken times this, once they are capped and have their slopes: weights are powers of two then, which is an
// instruction instead of nine.
inline constexpr float kLog2OfE = 1.44269504f;

// What a row's sum of values is multiplied by in the end. A sink is a score without a value, as it is in memory; none:
// -infinity.
ARK_DEVICE float last_factor(float sink, float maximum, float sum) {
  float factor = 1;
  if (sink != -infinity()) {
    const float now = dev::max(maximum, sink * kLog2OfE);
    factor = dev::exp2(maximum - now);
    sum = sum * factor + dev::exp2(sink * kLog2OfE - now);
  }
  return factor / sum;
}

// `known`: the first kKnownHeads heads of the list.
ARK_DEVICE i32 head_of(const i32* head_list, const i32* known, i32 n) {
  return n < kKnownHeads ? known[n] : dev::ld_nc(head_list + n);
}
ARK_APART i64 place_of_row(i32 first, i32 row, i32 group, i32 heads, const i32* head_list, const i32* known) {
  const Division token = divide(row, group);
  return static_cast<i64>(first + token.quotient) * heads + head_of(head_list, known, token.rest);
}

// Row `slot` of a head's part of pages [parts][size, kDim] of E.
template <class E, int kDim>
ARK_DEVICE void prefetch_row(const u8* pages, i64 part, i32 slot, i32 size) {
  constexpr KvFormat format = Kv<E>::kFormat;
  constexpr int kBytes = kDim * format.bits / 8, kLine = 128;
  const u8* codes = pages + part * format.head_bytes(size, kDim);
  ARK_UNROLL
  for (int b = 0; b < kBytes; b += kLine) dev::prefetch(codes + slot * kBytes + b);
  if constexpr (format.has_scales()) dev::prefetch(codes + format.code_bytes(size, kDim) + slot * 4);
}

// A row's softmax over some keys: the largest score; sums, of weights and of values times them, as of that score.
struct RowPart {
  float maximum = -infinity(), sum = 0;
  dev::f32x4 values = {0, 0, 0, 0};  // four of the values' elements
};
// A part and the one behind it, merged: the largest score of both, and what the sums of each are multiplied by. Of a
// part without keys: by 0, not NaN.
struct Merge {
  float maximum, first, second;
  ARK_DEVICE Merge(float a, float b)
      : maximum(dev::max(a, b)),
        first(a == -infinity() ? 0.0f : dev::exp2(a - maximum)),
        second(b == -infinity() ? 0.0f : dev::exp2(b - maximum)) {}
  ARK_DEVICE float of(float a, float b) const { return dev::fma(b, second, a * first); }
};
// Of parts one behind the other, which is how bodies/attention_strips.h comes to them, too.
template <int kCount>
ARK_DEVICE RowPart merged(const RowPart (&parts)[kCount]) {
  RowPart all;
  ARK_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const RowPart& own = parts[i];
    const Merge merge(all.maximum, own.maximum);
    all.maximum = merge.maximum;
    all.sum = merge.of(all.sum, own.sum);
    all.values = {merge.of(all.values.x, own.values.x), merge.of(all.values.y, own.values.y),
                  merge.of(all.values.z, own.values.z), merge.of(all.values.w, own.values.w)};
  }
  return all;
}

// The tile at hand. Each warp has it in scratch: registers are for keys and values.
struct AttentionTask {
  AttentionItem item;
  i32 item_number, kv, split, split_count;  // splits of the item
  i32 heads_at, group;  // where in the head table the KV head's query heads stand; how many
  i32 rows;             // 0: there is nothing to do
  i32 number;           // of the block's tiles: that of its OpenTile
  i32 turn;             // of rows, modulo two; the last member: it is not the tile's
};
static_assert(sizeof(AttentionTask) == kTaskBytes);

// Of the tile at hand and the next ones, what is known before others are waited for, or while tiles before it run: in
// scratch, behind the warps' tasks.
struct OpenTile {
  AttentionTask task;
  i32 heads[kKnownHeads];
  // Of each warp's 32 first keys: the page of the first one, by its number in the sequence, and those behind it;
  // kNoPages if they lie in more.
  static constexpr i32 kNoPages = -0x40000000;
  i32 first_page[kConsumerWarps], pages[kConsumerWarps][kKnownPages];
};
static_assert(sizeof(OpenTile) == kOpenTileBytes && kKnownPages * kConsumerWarps == 32);
ARK_BOTH constexpr int rows_scratch(u32 scratch) {
  return static_cast<int>(few_scratch(scratch) - open_bytes(scratch));
}
inline constexpr int kRowsScratch = rows_scratch(kScratchBytes);

// Of the block's tile number `n`, from when it is opened until the one kTilesAhead behind it is.
ARK_DEVICE OpenTile& open_tile(const Block& b, int n) {
  return reinterpret_cast<OpenTile*>(b.scratch + kConsumerWarps * kTaskBytes)[n % kTilesAhead];
}

// The number of the lowest one; there is one.
ARK_DEVICE int lowest_bit(u32 bits) { return dev::popcount(~bits & (bits - 1)); }

// Where a block is among its tiles: the number of the next one, and how many the call before has run; one register.
struct TilePlace {
  u32 packed = 0;
  ARK_DEVICE int next() const { return static_cast<int>(packed / 8); }
  ARK_DEVICE int before() const { return static_cast<int>(packed / 8 - packed % 8); }
  ARK_DEVICE TilePlace behind(int tiles) const { return {(packed / 8 + tiles) * 8 + tiles}; }
};
static_assert(kTilesAhead / 2 < 8);
// Whether a step leaves to bodies all of the scratch that there is.
ARK_DEVICE bool leaves_all_scratch(const Block& b) {
  return b.words->stages[b.words->turn % 2] <= b.p.stages;
}

// Splits of the step's longest sequence.
ARK_DEVICE i32 call_splits(const Block& b) { return b.vals[b.rank->val_count]; }

// A warp: what is to be done for a tile, the block's number `n`, but for its turn. One round of loads.
ARK_DEVICE void look_up(const Call& call, AttentionTile tile, i32 n, AttentionTask* to) {
  const Block& b = call.b;
  const AttentionArguments& a = call.i.attention;
  const AttentionItem item = dev::ld_global(at<const AttentionItem>(b.rank->items) + tile.item);
  const i32* table = at<const i32>(a.head_table);
  const i32 begin = dev::ld_nc(table + tile.kv), end = dev::ld_nc(table + tile.kv + 1);
  const ItemSplits own(item, a.window, call_splits(b));
  dev::sync_warp();  // the one before is read
  if (b.lane == 0) {
    to->item = item;
    to->item_number = tile.item, to->kv = tile.kv, to->split = tile.split, to->split_count = own.count();
    to->heads_at = begin, to->group = end - begin;
    to->rows = own.has(tile.split) ? item.count * (end - begin) : 0;
    to->number = n;
  }
  dev::sync_warp();
}
// The first one of warp `warp`'s 32 keys of a split that the tile's first token sees, or those behind it.
ARK_DEVICE i32 first_key(const AttentionTask& task, i32 window, int warp, i32 oldest) {
  i32 first = task.split * split_keys(task.item.position) + warp * 32;
  ARK_ROLLED
  while (window > 0 && first + 32 <= oldest) first += kAttentionBlock;
  return first;
}

ARK_DEVICE AttentionTile attention_tile(const Call& call, i32 tile) {
  const i32 items = divide(call.size(call.i.grid), call.size(call.i.attention.kv_heads)).quotient;
  return {tile, items, call_splits(call.b)};
}

// A warp opens tile `tile`, number `n` of the block's.
ARK_APART void open_ahead(const LoopParameters& p, u32 instance, i32 tile, int n) {
  Block b = open_turn_block(p);
  const Call call{b, instance_at(instance), nullptr};
  const AttentionArguments& a = call.i.attention;
  OpenTile& to = open_tile(b, n);
  look_up(call, attention_tile(call, tile), n, &to.task);
  const AttentionTask& task = to.task;
  if (task.rows == 0) return;
  const i32 newest = task.item.position + task.item.count - 1, size = a.page_size;
  const i32 first = first_key(task, a.window, b.lane / kKnownPages, task.item.position - a.window + 1);
  const i32 first_page = divide(first, size).quotient, page = first_page + b.lane % kKnownPages;
  const bool are_few = divide(first + 31, size).quotient - first_page < kKnownPages;
  const i32* pages =
      at<const i32>(b.rank->page_table) + static_cast<i64>(task.item.slot) * b.rank->pages_per_slot;
  // Both under way at once; of a page or head that there is not, another one.
  const i32 head =
      dev::ld_nc(at<const i32>(a.head_table) + task.heads_at + dev::min(b.lane, dev::max(0, task.group - 1)));
  const i32 own = dev::ld_global(pages + (page * size <= newest ? page : 0));
  if (b.lane < kKnownHeads) to.heads[b.lane] = head;
  to.pages[b.lane / kKnownPages][b.lane % kKnownPages] = own;
  if (b.lane % kKnownPages == 0)
    to.first_page[b.lane / kKnownPages] = are_few ? first_page : OpenTile::kNoPages;
}

// Whether a block has fewer than `n` + 1 tiles.
ARK_DEVICE bool is_behind_tiles(const Block& b, int n) {
  return b.words->first_tile + n >= b.words->last_tile;
}

// Warps open the tiles from number `first` to `last`, if the block has them, in the places of tiles that all are
// through with, a warp each: the last ones, which most often have the least to do.
ARK_APART void open_further(const LoopParameters& p, u32 instance, int first, int last) {
  const Block b = open_block(p, 0, 0);
  const int n = first + kConsumerWarps - 1 - b.warp;
  if (n >= last || is_behind_tiles(b, n) || ARK_BUG(next_not_opened)) return;
  open_ahead(p, instance, b.words->first_tile + n, n);
}

// Each warp asks for the keys and values of its number that are taken first of each of the block's open tiles from
// number `first` to `last`, since the weights of a step drive them out of L2. Where they lie is known before this
// step's are appended.
template <class E, int kKey, int kValue>
ARK_APART void ask_ahead(const LoopParameters& p, u32 instance, int first, int last) {
  const Block b = open_block(p, 0, 0);
  const AttentionArguments& a = instance_at(instance).attention;
  ARK_ROLLED
  for (int n = first; n < last && !is_behind_tiles(b, n); ++n) {
    const OpenTile& open = open_tile(b, n);
    const AttentionTask& task = open.task;
    if (task.rows == 0 || open.first_page[b.warp] == OpenTile::kNoPages) continue;
    const i32 key = first_key(task, a.window, b.warp, task.item.position - a.window + 1) + b.lane;
    i32 slot = key - open.first_page[b.warp] * a.page_size, behind = 0;
    ARK_ROLLED
    for (int page = 1; page < kKnownPages; ++page) {
      if (slot >= a.page_size) slot -= a.page_size, ++behind;
    }
    if (key >= task.item.position + task.item.count) continue;
    const i64 part = static_cast<i64>(open.pages[b.warp][behind]) * a.kv_heads + task.kv;
    prefetch_row<E, kKey>(at<const u8>(a.keys), part, slot, a.page_size);
    prefetch_row<E, kValue>(at<const u8>(a.values), part, slot, a.page_size);
  }
}

// Of `count` tiles from number `first` of the block's on, which are run and some of which are splits: adds up those
// whose item and KV head the block is the last one of.
template <int kValue, class X>
ARK_APART void join_splits(const LoopParameters& p, u32 instance, int first, int count);

// What both ways of attention share: the tile at hand, and what becomes of rows. A row is a token of the item and a
// query head of the group.
template <int kValue, class X>
struct AttentionRows {
  const Call& call;

  ARK_DEVICE explicit AttentionRows(const Call& c) : call(c) {}

  ARK_DEVICE AttentionTask& task() const {
    return reinterpret_cast<AttentionTask*>(call.b.scratch)[call.b.warp];
  }
  ARK_DEVICE const i32* head_list() const {
    return at<const i32>(call.i.attention.head_table) + task().heads_at;
  }
  ARK_DEVICE const OpenTile& opened() const { return open_tile(call.b, task().number); }
  ARK_DEVICE const i32* known_heads() const { return opened().heads; }
  ARK_DEVICE i32 head(i32 n) const { return head_in(opened(), n); }
  ARK_DEVICE i32 head_in(const OpenTile& tile, i32 n) const {
    return head_of(at<const i32>(call.i.attention.head_table) + tile.task.heads_at, tile.heads, n);
  }
  // The page of that number in the item's sequence; `is_first`: of the first keys of warp `warp`.
  ARK_DEVICE i32 page(i32 number, bool is_first, int warp) const {
    if (is_first) {
      const OpenTile& open = opened();
      const u32 behind = static_cast<u32>(number - open.first_page[warp]);
      if (behind < kKnownPages) return open.pages[warp][ARK_BUG(another_page) ? behind ^ 1 : behind];
    }
    return dev::ld_global(at<const i32>(call.b.rank->page_table) +
                          static_cast<i64>(task().item.slot) * call.b.rank->pages_per_slot + number);
  }
  ARK_DEVICE float* scratch(int at_float) const {
    return reinterpret_cast<float*>(call.b.scratch + open_bytes(kScratchBytes)) + at_float;
  }
  ARK_DEVICE i32 position_of(i32 row) const {
    return task().item.position + divide(row, task().group).quotient;
  }
  // A row's place among [tokens][heads].
  ARK_DEVICE i64 place_of(i32 row) const {
    return place_of_row(task().item.first, row, task().group, call.size(call.i.attention.heads), head_list(),
                        known_heads());
  }

  ARK_DEVICE void start() const {
    if (call.b.lane == 0) task().turn = 0;  // who alone reads it, before it is opened
  }

  // Tile number `n` of the block's. Whether there is something to do.
  ARK_DEVICE bool open(int n) const {
    const AttentionTask& own = open_tile(call.b, ARK_BUG(tile_of_another_number) ? 0 : n).task;
    dev::sync_warp();  // the one before is read
    if (call.b.lane * sizeof(i32) < sizeof(AttentionTask) - sizeof(i32))
      reinterpret_cast<i32*>(&task())[call.b.lane] = reinterpret_cast<const i32*>(&own)[call.b.lane];
    dev::sync_warp();
    return task().rows > 0;
  }

  // Where a row's numbers go: its place among [tokens][heads], and its sink.
  struct Target {
    i32 place;
    float sink;
  };
  ARK_DEVICE Target target_of(i32 row) const {
    const auto place = static_cast<i32>(place_of(row));
    const float* sinks = at<const float>(call.i.attention.sinks);
    return {place, sinks != nullptr ? dev::ld_nc(sinks + head(divide(row, task().group).rest)) : -infinity()};
  }

  // Of a row and a split: values, maximum, sum; padded.
  ARK_DEVICE float* partial(i32 place, i32 of) const {
    return at<float>(call.i.attention.partials) +
           (static_cast<i64>(place) * call_splits(call.b) + of) * (kValue + 4);
  }

  // Where a row's outputs go, and the first one's number there.
  struct Outputs {
    float* row;
    i32 first;
    bool told;
    // `by` times values' sums.
    ARK_DEVICE void store(int d, const dev::f32x4& v, float by) const {
      store_four<X>(row, first + d, {v.x * by, v.y * by, v.z * by, v.w * by}, told);
    }
  };
  ARK_DEVICE Outputs outputs(const Target& to) const {
    const i32 heads = call.size(call.i.attention.heads);
    const Division place = divide(to.place, heads);
    const auto out = rows_at(call.b, call.i.attention.out, heads * kValue, call.i.lamport_out);
    return {out.row(place.quotient), place.rest * kValue, out.told};
  }
  ARK_DEVICE void write(const Target& to, int d, const RowPart& part) const {
    outputs(to).store(d, part.values, last_factor(to.sink, part.maximum, part.sum));
  }
  // Of the split of `of`: the outputs, if it is the item's only one.
  ARK_DEVICE void hand_in(const AttentionTask& of, const Target& to, int d, const RowPart& part) const {
    if (of.split_count == 1) return write(to, d, part);
    float* own = partial(to.place, of.split);
    dev::st_global(reinterpret_cast<dev::f32x4*>(own + d), part.values);
    if (d == 0) dev::st_global(reinterpret_cast<dev::f32x2*>(own + kValue), {part.maximum, part.sum});
  }

  // Of the block's tiles [first, first + count) those that are splits: whose item and KV head it is the last one of, as
  // bits.
  ARK_DEVICE u32 arrive(int first, int count) const {
    consumers_sync();
    if (call.b.warp == 0) {
      const AttentionTask& own = open_tile(call.b, first + dev::min(call.b.lane, count - 1)).task;
      bool is_last = false;
      if (call.b.lane < count && own.rows > 0 && own.split_count > 1) {
        u32* word = at<u32>(call.i.attention.arrivals) +
                    own.item_number * call.size(call.i.attention.kv_heads) + own.kv;
        // Releases the block's partials, acquires the others'.
        const u32 there = dev::atom_add<dev::Scope::gpu>(word, 1u) + 1;
        is_last = there == static_cast<u32>(own.split_count);
        if (is_last) dev::st_relaxed<dev::Scope::gpu>(word, 0u);  // the next phase's waits order it
      }
      const u32 last = dev::ballot(is_last);
      if (call.b.lane == 0) call.b.words->last_arrival = static_cast<i32>(last);
    }
    consumers_sync();
    return dev::uniform(static_cast<u32>(call.b.words->last_arrival));
  }
  // Who is last adds up the splits of the block's tile number `n`, in order.
  ARK_DEVICE void add_splits(int n) const {
    open(n);
    const i32 rows = task().rows, split_count = task().split_count;
    constexpr int kFours = kValue / 4;
    const i32 first_split =
        ItemSplits(task().item, call.size(call.i.attention.window), call_splits(call.b)).first;
    ARK_ROLLED
    for (int e = call.b.thread; e < rows * kFours; e += kConsumers) {
      const int row = e / kFours, d = e % kFours * 4;
      const Target to = target_of(row);
      const float* from = partial(to.place, first_split);
      RowPart parts[kMaxSplits];
      ARK_UNROLL
      for (int s = 0; s < kMaxSplits; ++s) {
        if (s >= split_count) continue;
        const float* own = from + s * (kValue + 4);
        parts[s].values = dev::ld_global(reinterpret_cast<const dev::f32x4*>(own + d));
        const auto two = dev::ld_global(reinterpret_cast<const dev::f32x2*>(own + kValue));
        parts[s].maximum = two.x, parts[s].sum = two.y;
      }
      write(to, d, merged(parts));
    }
  }
};

template <int kValue, class X>
ARK_APART void add_splits(const LoopParameters& p, u32 instance, int n) {
  Block b = open_turn_block(p);
  const Call call{b, instance_at(instance), nullptr};
  AttentionRows<kValue, X>(call).add_splits(n);
}
template <int kValue, class X>
ARK_APART void join_splits(const LoopParameters& p, u32 instance, int first, int count) {
  Block b = open_turn_block(p);
  const Call call{b, instance_at(instance), nullptr};
  ARK_ROLLED
  for (u32 last = AttentionRows<kValue, X>(call).arrive(first, count); last != 0; last &= last - 1)
    add_splits<kValue, X>(p, instance, first + lowest_bit(last));
}

}  // namespace ark::cuda
