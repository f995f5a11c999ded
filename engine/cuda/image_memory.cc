// Where a rank's tables, buffers and state lie in its arena.
#include <algorithm>

#include "engine/cuda/make_image.h"

namespace ark::cuda {

void RankImage::plan_memory(uint64_t instances) {
  const Program& p = *setup_.program;
  const RunnerLimits& limits = options_.limits;
  const auto words = [&](int64_t count) { return take(static_cast<uint64_t>(count) * 4); };
  // Tables first: what tables() returns.
  rank_.instances = take((skipped_count_ > 0 ? 2 : 1) * instances * sizeof(Instance));
  rank_.waits = take(instances * kMaxWaits * sizeof(Wait));
  rank_.messages = take(instances * (p.channels.empty() ? 1 : kMaxMessages) * sizeof(Message));
  rank_.streams = take(streams_.size() * sizeof(Stream));
  rank_.caches = take(p.buffers.size() * sizeof(CachePages));
  counters_ = take(instances * kLineBytes);
  borders_offset_ = words(static_cast<int64_t>(borders_.size()));
  heads_offset_ = words(static_cast<int64_t>(heads_.size()));
  aux_ = take(instances * kAuxSizes * sizeof(Size));
  table_bytes_ = arena_bytes_;
  // Then memory that starts as zeros.
  channel_counters_ = take(p.channels.size() * kLineBytes);
  tickets_ = take(kLineBytes * dma::kPriorities);
  rank_.readers = take(p.phases.size() * kLineBytes);
  rank_.ready = take(kLineBytes);
  rank_.through = take(kLineBytes);
  rank_.longest = take(kLineBytes);
  const uint64_t act = take(static_cast<uint64_t>(setup_.binding->act_bytes) + 64);
  buffers_.assign(p.buffers.size(), ~uint64_t{0});
  inboxes_.assign(p.channels.size(), 0);
  for (std::size_t b = 0; b < p.buffers.size(); ++b) {
    const Buffer& buffer = p.buffers[b];
    if (buffer.alias != kNone) continue;
    if (buffer.kind == BufferKind::kAct)
      buffers_[b] = act + static_cast<uint64_t>(setup_.binding->offsets[b]);
    if (buffer.kind == BufferKind::kIo)
      buffers_[b] = take(static_cast<uint64_t>(max_bytes(p, static_cast<BufferId>(b))));
    if (buffer.kind == BufferKind::kKvPage)
      buffers_[b] = take(static_cast<uint64_t>(page_bytes(p, buffer) * limits.pages));
  }
  for (std::size_t c = 0; c < p.channels.size(); ++c) {
    const bool in_device = setup_.group == nullptr;  // else the group has the inboxes
    if (!p.channels[c].outgoing && in_device)
      inboxes_[c] = take(2 * static_cast<uint64_t>(inbox_half(p.channels[c])));
  }
  rank_.page_size = limits.page_size;
  rank_.pages_per_slot = (limits.max_length + limits.page_size - 1) / limits.page_size;
  rank_.page_table = words(int64_t{limits.max_slots} * rank_.pages_per_slot);
  rank_.last_tokens = words(limits.max_slots);
  rank_.page_tokens = words(int64_t{limits.pages} * limits.page_size);
  rank_.positions = words(limits.max_tokens);
  rank_.token_slots = words(limits.max_tokens);
  rank_.places = take(static_cast<uint64_t>(limits.max_tokens) * sizeof(RowPlace));
  rank_.items = take(static_cast<uint64_t>(options_.max_items) * sizeof(AttentionItem));
  rank_.max_rows = limits.max_rows;
  rank_.sample_counts = words(int64_t{std::min(options_.processors, limits.max_rows)} * limits.vocabulary);
  rank_.waiting = words(int64_t{options_.processors} * rank_.waiting_levels * kWideLevelFloats);
  partials_ = take(kPartialRooms * partial_bytes_);
  arrivals_ = words(static_cast<int64_t>(arrival_words_));
  plan_attention();
  if (setup_.group == nullptr) shares_ = take(rank_shares_.bytes());
  if (lamport_.floats == 0) return;
  lamport_state_ = take(sizeof(LamportState));
  const uint64_t own = static_cast<uint64_t>(lamport_.floats) * 4;
  lamport_rows_ = take(own + parts_bytes());
  parts_ = lamport_rows_ + own;
}

// Per row (token and head) and split: sums of values, maximum and sum of weights, padded.
void RankImage::plan_attention() {
  const Program& p = *setup_.program;
  const int32_t splits = most_splits(options_.limits.max_length);
  if (splits <= 1) return;
  uint64_t partials = 0, arrivals = 0;
  for (const Phase& phase : p.phases) {
    if (p.variants[phase.variant].code != OpCode::kAttention) continue;
    const auto dim = [&](std::size_t operand, std::size_t axis) {
      const Buffer& b = p.buffers[resolve(p, phase, phase.operands[operand], 0)];
      return static_cast<uint64_t>(p.vals[b.dims[axis]].max);
    };
    const uint64_t rows = static_cast<uint64_t>(options_.limits.max_tokens) * dim(0, 1);
    partials = std::max(partials, rows * static_cast<uint64_t>(splits) * (dim(2, 3) + 4) * 4);
    arrivals = std::max(arrivals, static_cast<uint64_t>(options_.max_items) * dim(1, 1) * 4);
  }
  attention_partials_ = take(partials);
  attention_arrivals_ = take(arrivals);
}

}  // namespace ark::cuda
