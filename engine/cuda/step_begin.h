// What a rank's processor 0 does before a step: the device's twin of Rank::read_descriptor
// (engine/cpu/rank.cc).
#pragma once

#include "engine/cuda/call.h"

namespace ark::cuda {

// engine/run/mailbox.h's and engine/run/step.h's records.
struct RecordHead {
  u64 step, bytes, plain;
  struct {
    u32 offset, count;
  } arrays[6];
};
enum RecordArray { kTokenArray, kSequenceArray, kDeltaArray, kCopyArray, kRowArray, kBiasArray };
static_assert(sizeof(RecordHead) == 72);
struct Sequence {
  i32 slot, first, count, kv_length;
};
struct PageDelta {
  i32 slot, index, page;
};
struct PageCopy {
  i32 from, to;
};
struct BiasEntry {
  i32 token;
  float value;
};
inline constexpr int kMaxTop = 20;
enum RowFlags : u32 { kWantToken = 1, kWantLogprob = 2, kWantLogits = 4 };
struct Row {
  i32 token, slot;
  u32 flags;
  i32 target, top, prompt_length, bias_first, bias_count;
  float temperature, top_p, min_p;
  i32 top_k;
  float presence_penalty, frequency_penalty, repetition_penalty;
  i32 padding;
  u64 seed;
};
static_assert(sizeof(Row) == 72);
struct RowResult {
  i32 token;
  float logprob;
  i32 top_count, has_logits;
  i32 top_tokens[kMaxTop];
  float top_logprobs[kMaxTop];
};
static_assert(sizeof(RowResult) == 176);

template <class T>
ARK_DEVICE const T* record_array(const Block& b, RecordArray which) {
  const RecordHead* head = at<const RecordHead>(b.p.record);
  return at<const T>(b.p.record + head->arrays[which].offset);
}
ARK_DEVICE i32 record_count(const Block& b, RecordArray which) {
  return static_cast<i32>(at<const RecordHead>(b.p.record)->arrays[which].count);
}

// In order: a later delta of the same entry wins.
ARK_DEVICE void apply_page_deltas(const Block& b) {
  const PageDelta* deltas = record_array<PageDelta>(b, kDeltaArray);
  const i32 count = record_count(b, kDeltaArray);
  ARK_ROLLED
  for (i32 i = b.thread; i < count; i += kConsumers) {
    const PageDelta d = deltas[i];
    bool is_last = true;
    ARK_ROLLED
    for (i32 j = i + 1; j < count; ++j) is_last &= deltas[j].slot != d.slot || deltas[j].index != d.index;
    if (is_last && !ARK_BUG(stale_page_table))
      at<i32>(b.rank->page_table)[static_cast<i64>(d.slot) * b.rank->pages_per_slot + d.index] = d.page;
  }
}

// One after the other: a copy may read what the one before has written.
ARK_DEVICE void copy_pages(const Block& b) {
  const PageCopy* copies = record_array<PageCopy>(b, kCopyArray);
  const i32 count = record_count(b, kCopyArray);
  const CachePages* caches = at<const CachePages>(b.rank->caches);
  ARK_ROLLED
  for (i32 c = 0; c < count; ++c) {
    const PageCopy copy = copies[c];
    ARK_ROLLED
    for (i32 k = 0; k < b.rank->cache_count; ++k) {
      const u64 bytes = caches[k].page_bytes;
      const dev::u32x4* from = at<const dev::u32x4>(caches[k].base + static_cast<u64>(copy.from) * bytes);
      dev::u32x4* to = at<dev::u32x4>(caches[k].base + static_cast<u64>(copy.to) * bytes);
      ARK_ROLLED
      for (u64 i = static_cast<u64>(b.thread); i < bytes / 16; i += kConsumers)
        dev::st_global(to + i, dev::ld_global(from + i));
    }
    i32* tokens = at<i32>(b.rank->page_tokens);
    const i64 size = b.rank->page_size;
    ARK_ROLLED
    for (i64 i = b.thread; i < size; i += kConsumers)
      tokens[copy.to * size + i] = tokens[copy.from * size + i];
    if (!ARK_BUG(page_copy_without_barrier)) consumers_sync();
  }
}

// The last sequence whose first token is not behind `token`.
ARK_DEVICE i32 sequence_of(const Sequence* sequences, i32 count, i32 token) {
  i32 low = 0, high = count;
  while (high - low > 1) {
    const i32 middle = (low + high) / 2;
    if (sequences[middle].first <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

ARK_DEVICE void place_tokens(const Block& b) {
  constexpr i32 kFeedbackToken = -1;
  const RankTables& r = *b.rank;
  const Sequence* sequences = record_array<Sequence>(b, kSequenceArray);
  const i32* tokens = record_array<i32>(b, kTokenArray);
  const i32 sequence_count = record_count(b, kSequenceArray), count = record_count(b, kTokenArray);
  ARK_ROLLED
  for (i32 t = b.thread; t < count; t += kConsumers) {
    const Sequence s = sequences[sequence_of(sequences, sequence_count, t)];
    const i32 position = s.kv_length + t - s.first;
    // Fed back: the slot's last sample, written in an earlier step that all processors have left.
    const i32 id = tokens[t] == kFeedbackToken ? at<i32>(r.last_tokens)[s.slot] : tokens[t];
    at<i32>(r.token_ids)[t] = id;
    at<i32>(r.positions)[t] = position;
    at<i32>(r.token_slots)[t] = s.slot;
    if (r.step_positions) at<i32>(r.step_positions)[t] = position;
    const Division place = divide(position, r.page_size);
    const i32 page = at<i32>(r.page_table)[static_cast<i64>(s.slot) * r.pages_per_slot + place.quotient];
    at<i32>(r.page_tokens)[static_cast<i64>(page) * r.page_size + place.rest] = id;
  }
}

// Items of the sequences, in order; and the longest sequence.
ARK_DEVICE void cut_items(const Block& b) {
  const Sequence* sequences = record_array<Sequence>(b, kSequenceArray);
  const i32 count = record_count(b, kSequenceArray);
  Item* items = at<Item>(b.rank->items);
  ARK_ROLLED
  for (i32 s = b.thread; s < count; s += kConsumers) {
    i32 at_item = 0;
    ARK_ROLLED
    for (i32 before = 0; before < s; ++before)
      at_item += (sequences[before].count + kItemRows - 1) / kItemRows;
    const Sequence own = sequences[s];
    ARK_ROLLED
    for (i32 i = 0; i < own.count; i += kItemRows)
      items[at_item++] = {own.slot, own.first + i, dev::min(kItemRows, own.count - i), own.kv_length + i};
  }
  if (b.warp != 0) return;
  float longest = 0;  // exact: lengths are far below 2^24
  ARK_ROLLED
  for (i32 s = b.lane; s < count; s += 32)
    longest = dev::max(longest, static_cast<float>(sequences[s].kv_length + sequences[s].count));
  longest = dev::warp_max(longest);
  if (b.lane == 0) *at<u64>(b.rank->longest) = static_cast<u64>(longest);
}

// All consumer threads of the rank's processor 0, while no processor of the rank is inside a step.
ARK_DEVICE void begin_step(const Block& b) {
  apply_page_deltas(b);
  if (!ARK_BUG(deltas_without_barrier)) consumers_sync();
  copy_pages(b);
  place_tokens(b);
  cut_items(b);
}

}  // namespace ark::cuda
