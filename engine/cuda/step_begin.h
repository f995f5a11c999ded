// What a rank's processor 0 does before a step: the device's twin of Rank::read_descriptor (engine/cpu/rank.cc).
#pragma once

#include "engine/cuda/call.h"

namespace ark::cuda {

template <class T>
ARK_DEVICE const T* record_array(const Block& b, StepArray which) {
  return at<const T>(b.p.record + at<const StepRecord>(b.p.record)->extent(which).offset);
}
ARK_DEVICE i32 record_count(const Block& b, StepArray which) {
  return static_cast<i32>(dev::ld_global(&at<const StepRecord>(b.p.record)->extent(which).count));
}

// The most rows that any product of the step has: of all tokens, or of those whose logits are wanted.
ARK_DEVICE i32 most_rows(const Block& b) {
  return dev::max(record_count(b, StepArray::kTokens), record_count(b, StepArray::kRows));
}

// In order: a later delta of the same entry wins.
ARK_DEVICE void apply_page_deltas(const Block& b) {
  const PageDelta* deltas = record_array<PageDelta>(b, StepArray::kPageDeltas);
  const i32 count = record_count(b, StepArray::kPageDeltas);
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
  const PageCopy* copies = record_array<PageCopy>(b, StepArray::kPageCopies);
  const i32 count = record_count(b, StepArray::kPageCopies);
  const CachePages* caches = at<const CachePages>(b.rank->caches);
  ARK_ROLLED
  for (i32 c = 0; c < count; ++c) {
    const PageCopy copy = copies[c];
    ARK_ROLLED
    for (i32 k = 0; k < b.rank->cache_count; ++k) {
      const u64 bytes = caches[k].page_bytes;
      const dev::u32x4* from = at<const dev::u32x4>(caches[k].base + static_cast<u64>(copy.from) * bytes);
      dev::u32x4* to = at<dev::u32x4>(caches[k].base + static_cast<u64>(copy.to) * bytes);
      in_turns<4>(
          b, 0, static_cast<i32>(bytes / 16), [&](i32 i) { return dev::ld_global(from + i); },
          [&](i32 i, const dev::u32x4& v) { dev::st_global(to + i, v); });
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
ARK_DEVICE i32 sequence_of(const StepSequence* sequences, i32 count, i32 token) {
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
  const RankTables& r = *b.rank;
  const StepSequence* sequences = record_array<StepSequence>(b, StepArray::kSequences);
  const i32* tokens = record_array<i32>(b, StepArray::kTokens);
  const i32 sequence_count = record_count(b, StepArray::kSequences),
            count = record_count(b, StepArray::kTokens);
  ARK_ROLLED
  for (i32 t = b.thread; t < count; t += kConsumers) {
    const StepSequence s = sequences[sequence_of(sequences, sequence_count, t)];
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
    const auto word = [](i32 v) { return static_cast<u32>(v); };
    dev::st_global(at<dev::u32x4>(r.places) + t, {word(position), word(place.rest), word(page), 0});
  }
}

// Items of the sequences, in order; and the longest sequence.
ARK_DEVICE void cut_items(const Block& b) {
  const StepSequence* sequences = record_array<StepSequence>(b, StepArray::kSequences);
  const i32 count = record_count(b, StepArray::kSequences);
  float length = 0;  // exact: lengths are far below 2^24
  ARK_ROLLED
  for (i32 s = b.lane; s < count; s += 32)
    length = dev::max(length, static_cast<float>(sequences[s].kv_length + sequences[s].count));
  const i32 longest = static_cast<i32>(dev::warp_max(length));
  if (b.thread == 0) *at<u64>(b.rank->longest) = static_cast<u64>(longest);
  const i32 most = item_tokens_of(b.rank->item_tokens, b.rank->item_strip, b.rank->item_heads,
                                  record_count(b, StepArray::kTokens), longest, b.p.processors);
  AttentionItem* items = at<AttentionItem>(b.rank->items);
  ARK_ROLLED
  for (i32 s = b.thread; s < count; s += kConsumers) {
    i32 at_item = 0;
    ARK_ROLLED
    for (i32 before = 0; before < s; ++before)
      at_item += count_items(sequences[before].kv_length, sequences[before].count, most);
    const StepSequence own = sequences[s];
    ARK_ROLLED
    for (i32 i = 0, tokens = 0; i < own.count; i += tokens) {
      tokens = item_tokens(own.kv_length + i, own.count - i, most);
      items[at_item++] = {own.slot, own.first + i, tokens, own.kv_length + i};
    }
  }
}

// A step that tells takes the other half of the memory than the one before (engine/cuda/lamport.h); so does, of its
// own, one whose sums over ranks go by words.
ARK_DEVICE void count_lamport(const Block& b) {
  const i32 rows = most_rows(b);
  if (b.thread != 0 || b.rank->lamport == 0) return;
  LamportState* state = at<LamportState>(b.rank->lamport);
  if (kHasPeers && rows <= b.rank->part_rows) state->parts ^= 1;
  if (rows > b.rank->told_rows) return;
  state->half ^= !ARK_BUG(same_half);
  state->before = state->rows;
  state->rows = rows;
}
// As all see it once the step is open; where there is none, zeros.
ARK_DEVICE LamportState lamport_state(const Block& b) {
  return b.rank->lamport == 0 ? LamportState{} : dev::ld_global(at<const LamportState>(b.rank->lamport));
}

// All consumer threads of the rank's processor 0, while no processor of the rank is inside a step.
ARK_DEVICE void begin_step(const Block& b) {
  apply_page_deltas(b);
  if (!ARK_BUG(deltas_without_barrier)) consumers_sync();
  copy_pages(b);
  place_tokens(b);
  cut_items(b);
  count_lamport(b);
}

}  // namespace ark::cuda
