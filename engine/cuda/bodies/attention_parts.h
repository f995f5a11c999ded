// Parts of attention: scores of one element; what can be known of a tile before others are waited for; how parts of
// rows, of warps and of splits, are merged and written.
#pragma once

#include "engine/cuda/bodies/kv.h"
#include "engine/cuda/bodies/parts.h"

namespace ark::cuda {

ARK_APART float capped(float score, float cap) { return cap * dev::tanh(score / cap); }

// What a row's sum of values is multiplied by in the end. A sink is a score without a value; none: -infinity.
ARK_DEVICE float last_factor(float sink, float maximum, float sum) {
  float factor = 1;
  if (sink != -infinity()) {
    const float now = dev::max(maximum, sink);
    factor = dev::exp(maximum - now);
    sum = sum * factor + dev::exp(sink - now);
  }
  return factor / sum;
}

ARK_APART i64 place_of_row(i32 first, i32 row, i32 group, i32 heads, const i32* head_list) {
  const Division token = divide(row, group);
  return static_cast<i64>(first + token.quotient) * heads + dev::ld_nc(head_list + token.rest);
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

// Asks for the keys and values that a tile's warps take first: the weights of a step drive them out of L2. Where they
// lie is known before this step's are appended (bodies/attention.h has the operands).
template <class E, int kKey, int kValue>
ARK_DEVICE void prefetch_tile(const LoopParameters& p, const Instance& i, const AttentionTile& tile) {
  const Block b = open_block(p, 0, 0);
  const i32 kv_heads = i.attention.kv_heads, size = i.attention.page_size, window = i.attention.window;
  const AttentionItem item = dev::ld_global(at<const AttentionItem>(b.rank->items) + tile.item);
  const i32 key = tile.split * split_keys(item.position) + b.thread;
  const bool is_seen = window == 0 || key - b.lane + 32 > item.position - window + 1;
  if (!is_seen || key >= item.position + item.count) return;
  const Division place = divide(key, size);
  const i32 page = dev::ld_global(at<const i32>(b.rank->page_table) +
                                  static_cast<i64>(item.slot) * b.rank->pages_per_slot + place.quotient);
  const i64 part = static_cast<i64>(page) * kv_heads + tile.kv;
  prefetch_row<E, kKey>(at<const u8>(i.attention.keys), part, place.rest, size);
  prefetch_row<E, kValue>(at<const u8>(i.attention.values), part, place.rest, size);
}

// A row's softmax over some keys: the largest score; sums, of weights and of values times them, as of that score.
struct RowPart {
  float maximum = -infinity(), sum = 0;
  dev::f32x4 values = {0, 0, 0, 0};  // four of the values' elements
};
// Of parts in order.
template <int kCount>
ARK_DEVICE RowPart merged(const RowPart (&parts)[kCount]) {
  RowPart all;
  ARK_UNROLL
  for (int i = 0; i < kCount; ++i) all.maximum = dev::max(all.maximum, parts[i].maximum);
  ARK_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const RowPart& own = parts[i];
    const float factor = own.maximum == -infinity() ? 0.0f : dev::exp(own.maximum - all.maximum);
    all.sum = dev::fma(own.sum, factor, all.sum);
    all.values.x = dev::fma(own.values.x, factor, all.values.x);
    all.values.y = dev::fma(own.values.y, factor, all.values.y);
    all.values.z = dev::fma(own.values.z, factor, all.values.z);
    all.values.w = dev::fma(own.values.w, factor, all.values.w);
  }
  return all;
}

// Splits of the step's longest sequence.
ARK_DEVICE i32 call_splits(const Call& call) { return call.b.vals[call.b.rank->val_count]; }

// The tile at hand. Each warp has it in scratch: registers are for keys and values.
struct AttentionTask {
  AttentionItem item;
  i32 item_number, kv, split, split_count;  // splits of the item
  i32 heads_at, group;  // where in the head table the KV head's query heads stand; how many
  i32 turn;             // of rows, modulo two
  i32 rows;
};
static_assert(sizeof(AttentionTask) == 48);
inline constexpr int kTaskBytes = kConsumerWarps * sizeof(AttentionTask);
inline constexpr int kRowsScratch = static_cast<int>(kFewScratchBytes) - kTaskBytes;

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
  ARK_DEVICE float* scratch(int at_float) const {
    return reinterpret_cast<float*>(call.b.scratch + kTaskBytes) + at_float;
  }
  ARK_DEVICE i32 position_of(i32 row) const {
    return task().item.position + divide(row, task().group).quotient;
  }
  // A row's place among [tokens][heads].
  ARK_DEVICE i64 place_of(i32 row) const {
    return place_of_row(task().item.first, row, task().group, call.size(call.i.attention.heads), head_list());
  }

  ARK_DEVICE void start() const {
    if (call.b.lane == 0) task().turn = 0;  // who alone reads it, before it is opened
  }

  // Whether there is something to do.
  ARK_DEVICE bool open(const AttentionTile& tile) const {
    const AttentionItem item = dev::ld_global(at<const AttentionItem>(call.b.rank->items) + tile.item);
    const i32* table = at<const i32>(call.i.attention.head_table);
    const i32 begin = dev::ld_nc(table + tile.kv), end = dev::ld_nc(table + tile.kv + 1);
    const ItemSplits own(item, call.size(call.i.attention.window), call_splits(call));
    dev::sync_warp();  // the one before is read
    if (call.b.lane == 0)
      task() = {item,        tile.item,   tile.kv,
                tile.split,  own.count(), begin,
                end - begin, task().turn, item.count * (end - begin)};
    dev::sync_warp();
    return own.has(tile.split) && end > begin;
  }

  // Where a row's numbers go: its place among [tokens][heads], and its sink.
  struct Target {
    i32 place;
    float sink;
  };
  ARK_DEVICE Target target_of(i32 row) const {
    const auto place = static_cast<i32>(place_of(row));
    const float* sinks = at<const float>(call.i.attention.sinks);
    return {place, sinks != nullptr
                       ? dev::ld_nc(sinks + dev::ld_nc(head_list() + divide(row, task().group).rest))
                       : -infinity()};
  }

  // Of a row and a split: values, maximum, sum; padded.
  ARK_DEVICE float* partial(i32 place, i32 of) const {
    return at<float>(call.i.attention.partials) +
           (static_cast<i64>(place) * call_splits(call) + of) * (kValue + 4);
  }

  ARK_DEVICE void write(const Target& to, int d, const RowPart& part) const {
    const float by = last_factor(to.sink, part.maximum, part.sum);
    const dev::f32x4& v = part.values;
    const i32 heads = call.size(call.i.attention.heads);
    const Division place = divide(to.place, heads);
    const Rows out = rows_at(call.b, call.i.attention.out, heads * kValue, call.i.lamport_out);
    store_four<X>(out.row(place.quotient), place.rest * kValue + d, {v.x * by, v.y * by, v.z * by, v.w * by},
                  out.told);
  }
  // Of the split: the outputs, if it is the item's only one.
  ARK_DEVICE void hand_in(const Target& to, int d, const RowPart& part) const {
    if (task().split_count == 1) return write(to, d, part);
    float* own = partial(to.place, task().split);
    dev::st_global(reinterpret_cast<dev::f32x4*>(own + d), part.values);
    if (d == 0) dev::st_global(reinterpret_cast<dev::f32x2*>(own + kValue), {part.maximum, part.sum});
  }

  // The last tile of an item and KV head adds up the splits, in order.
  ARK_DEVICE void join(i32 rows) const {
    const i32 split_count = task().split_count;
    consumers_sync();
    u32* word = at<u32>(call.i.attention.arrivals) +
                task().item_number * call.size(call.i.attention.kv_heads) + task().kv;
    if (call.b.thread == 0) {
      // Releases the block's partials, acquires the others'.
      const u32 there = dev::atom_add<dev::Scope::gpu>(word, 1u) + 1;
      call.b.words->last_arrival = there == static_cast<u32>(split_count);
    }
    consumers_sync();
    if (call.b.words->last_arrival == 0) return;
    if (call.b.thread == 0) dev::st_relaxed<dev::Scope::gpu>(word, 0u);  // the next phase's waits order it
    constexpr int kFours = kValue / 4;
    const i32 first_split =
        ItemSplits(task().item, call.size(call.i.attention.window), call_splits(call)).first;
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

}  // namespace ark::cuda
