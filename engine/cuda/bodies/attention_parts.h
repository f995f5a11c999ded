// Parts of attention: scores and weights of one element; what can be known of a tile before others are waited for.
#pragma once

#include "engine/cuda/bodies/kv.h"

namespace ark::cuda {

ARK_APART float capped(float score, float cap) { return cap * dev::tanh(score / cap); }

// A sink, if there is one, is a score without a value.
ARK_APART float normalized(const float* sink, float maximum, float sum, float value) {
  if (sink != nullptr) {
    const float own = dev::ld_nc(sink);
    const float now = dev::max(maximum, own), factor = dev::exp(maximum - now);
    sum = sum * factor + dev::exp(own - now);
    value *= factor;
  }
  return value / sum;
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
// lie is known before this step's are appended. Tile: item, KV head, split (bodies/attention.h has the operands).
template <class E, int kKey, int kValue>
ARK_DEVICE void prefetch_tile(const LoopParameters& p, const Instance& i, i32 tile, i32 splits) {
  const Block b = open_block(p, 0, 0, {});
  const i32 kv_heads = i.sizes[1], size = i.sizes[2], window = i.sizes[3];
  const Division by_split = divide(tile, splits), by_head = divide(by_split.quotient, kv_heads);
  const AttentionItem item = dev::ld_global(at<const AttentionItem>(b.rank->items) + by_head.quotient);
  const i32 key = by_split.rest * p.split_keys + b.thread;
  const bool is_seen = window == 0 || key - b.lane + 32 > item.position - window + 1;
  if (!is_seen || key >= item.position + item.count) return;
  const Division place = divide(key, size);
  const i32 page = dev::ld_global(at<const i32>(b.rank->page_table) +
                                  static_cast<i64>(item.slot) * b.rank->pages_per_slot + place.quotient);
  const i64 part = static_cast<i64>(page) * kv_heads + by_head.rest;
  prefetch_row<E, kKey>(at<const u8>(i.operands[1]), part, place.rest, size);
  prefetch_row<E, kValue>(at<const u8>(i.operands[2]), part, place.rest, size);
}

}  // namespace ark::cuda
