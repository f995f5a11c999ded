#include "engine/run/mailbox.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"

namespace ark {
namespace {

constexpr uint64_t kAlign = 64;
uint64_t aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Lays the arrays of a record one behind the other.
class RecordLayout {
 public:
  template <typename T>
  StepRecord::Extent add(std::size_t count) {
    at_ = (at_ + 7) / 8 * 8;
    const StepRecord::Extent extent{static_cast<uint32_t>(at_), static_cast<uint32_t>(count)};
    at_ += count * sizeof(T);
    return extent;
  }
  uint64_t bytes() const { return at_; }

 private:
  uint64_t at_ = sizeof(StepRecord);
};

template <typename T>
StepRecord::Extent write(const std::vector<T>& from, RecordLayout& layout, std::byte* record) {
  const StepRecord::Extent extent = layout.add<T>(from.size());
  if (!from.empty()) std::memcpy(record + extent.offset, from.data(), from.size() * sizeof(T));
  return extent;
}

void limit(std::size_t count, int32_t most, const char* what) {
  ARK_CHECK(count <= static_cast<std::size_t>(most), "a step with " + std::to_string(count) + " " + what +
                                                         ", limit " + std::to_string(most) +
                                                         "; the scheduler must split it");
}

}  // namespace

StepCapacity StepCapacity::of(const RunnerLimits& l) {
  const int64_t pages = l.page_size > 0 ? (l.max_length + l.page_size - 1) / l.page_size : 0;
  const int64_t deltas = std::min<int64_t>(int64_t{l.max_slots} * pages, int64_t{1} << 22);
  return {l.max_tokens,    l.max_slots,
          l.max_rows,      l.max_rows * kMaxBias,
          l.vocabulary,    static_cast<int32_t>(deltas),
          l.max_slots * 2, l.max_rows * ((l.vocabulary + 31) / 32)};
}

uint64_t record_bytes(const StepCapacity& c) {
  RecordLayout w;
  const auto count = [](int32_t n) { return static_cast<std::size_t>(n); };
  w.add<int32_t>(count(c.tokens));
  w.add<StepSequence>(count(c.sequences));
  w.add<PageDelta>(count(c.page_deltas));
  w.add<PageCopy>(count(c.page_copies));
  w.add<StepRow>(count(c.rows));
  w.add<BiasEntry>(count(c.bias));
  w.add<uint32_t>(count(c.masks));
  return w.bytes();
}

void write_record(const StepDescriptor& step, uint64_t number, const StepCapacity& c,
                  std::span<std::byte> slot) {
  RecordLayout w;
  StepRecord record;
  record.step = number;
  const auto extent = [&](StepArray which) -> StepRecord::Extent& {
    return record.arrays[static_cast<std::size_t>(which)];
  };
  const auto put = [&](StepArray which, const auto& from, int32_t most, const char* what) {
    limit(from.size(), most, what);
    extent(which) = write(from, w, slot.data());
  };
  limit(step.bias.size(), c.bias, "bias entries");
  put(StepArray::kTokens, step.tokens, c.tokens, "tokens");
  put(StepArray::kSequences, step.sequences, c.sequences, "sequences");
  put(StepArray::kPageDeltas, step.page_deltas, c.page_deltas, "page deltas");
  put(StepArray::kPageCopies, step.page_copies, c.page_copies, "page copies");
  put(StepArray::kRows, step.rows, c.rows, "rows");
  // std::pair has no guaranteed layout: entry by entry.
  const StepRecord::Extent bias = extent(StepArray::kBias) = w.add<BiasEntry>(step.bias.size());
  for (std::size_t i = 0; i < step.bias.size(); ++i) {
    const BiasEntry entry{step.bias[i].first, step.bias[i].second};
    std::memcpy(slot.data() + bias.offset + i * sizeof entry, &entry, sizeof entry);
  }
  put(StepArray::kMasks, step.masks, c.masks, "words of masks");
  record.bytes = static_cast<unsigned>(w.bytes());
  record.processors = static_cast<unsigned>(std::max(0, step.processors));
  std::memcpy(slot.data(), &record, sizeof record);
}

MailboxLayout MailboxLayout::of(const StepCapacity& c, int ranks, uint64_t vals_each) {
  const auto rows = static_cast<uint64_t>(c.rows), vocabulary = static_cast<uint64_t>(c.vocabulary);
  MailboxLayout l;
  l.slots = sizeof(dma::Counter64) * static_cast<uint64_t>(1 + ranks);
  l.vals = aligned(record_bytes(c));
  l.vals_each = vals_each;
  l.slot_bytes = aligned(l.vals + static_cast<uint64_t>(ranks) * vals_each * sizeof(int64_t));
  l.results = l.slots + Mailbox::kDepth * l.slot_bytes;
  l.logits = aligned(rows * sizeof(RowRecord));
  l.result_bytes = l.logits + aligned(rows * vocabulary * sizeof(float));
  l.bytes = l.results + Mailbox::kDepth * l.result_bytes;
  return l;
}

Mailbox::Mailbox(const StepCapacity& capacity, int ranks)
    : Mailbox(capacity, ranks, MailboxLayout::of(capacity, ranks), nullptr) {}

Mailbox::Mailbox(const StepCapacity& capacity, int ranks, const MailboxLayout& layout, std::byte* memory)
    : capacity_(capacity), ranks_(ranks), layout_(layout) {
  if (!memory) {
    memory_ = dma::allocate_private(layout.bytes, "mailbox");
    memory = memory_.region.base;
  }
  head_ = reinterpret_cast<Head*>(memory);  // zero-filled memory is a valid counter
  slots_ = memory + layout.slots;
  results_ = memory + layout.results;
}

std::span<std::byte> Mailbox::free_slot() {
  const uint64_t n = posted_count_ + 1;
  ARK_CHECK(n <= kDepth || is_done(n - kDepth), "more steps in flight than the mailbox is deep");
  return {slots_ + n % kDepth * layout_.slot_bytes, layout_.slot_bytes};
}

void Mailbox::copy_record(std::span<const std::byte> bytes) {
  ARK_CHECK(bytes.size() >= sizeof(StepRecord) && bytes.size() <= layout_.vals,
            "a step record that does not fit the mailbox; all ranks must run with the same limits");
  std::memcpy(free_slot().data(), bytes.data(), bytes.size());
  const StepRecord& copied = record(posted_count_ + 1);
  ARK_CHECK(copied.bytes == bytes.size() && copied.step == posted_count_ + 1,
            "a step record that is cut short or out of order");
}

std::span<const std::byte> Mailbox::posted_record() const {
  const StepRecord& last = record(posted_count_);
  return {reinterpret_cast<const std::byte*>(&last), last.bytes};
}

void Mailbox::publish() {
  ++posted_count_;
  // Release, in raise(): the slot's bytes come before. Pairs with the leader's acquire of `posted`.
  head_->posted.raise();
}

bool Mailbox::is_done(uint64_t n) const {
  // Acquire, in load(): pairs with the leaders' raise of `done`; the result may be read, the slot overwritten.
  for (int r = 0; r < ranks_; ++r) {
    if (head_->done[r].load() < n) return false;
  }
  return true;
}

dma::Fault Mailbox::wait_done(uint64_t n, const dma::WaitContext& context) {
  for (int r = 0; r < ranks_; ++r) {
    if (dma::Fault fault =
            dma::wait_reached(head_->done[r], n, {.what = "end of a step", .rank = r}, context)) {
      return fault;
    }
  }
  return {};
}

const StepRecord& Mailbox::record(uint64_t n) const {
  return *reinterpret_cast<const StepRecord*>(slots_ + n % kDepth * layout_.slot_bytes);
}

RowRecord* Mailbox::result_rows(uint64_t n) {
  return reinterpret_cast<RowRecord*>(results_ + n % kDepth * layout_.result_bytes);
}

float* Mailbox::result_logits(uint64_t n, int64_t row) {
  std::byte* slot = results_ + n % kDepth * layout_.result_bytes;
  return reinterpret_cast<float*>(slot + layout_.logits) + row * capacity_.vocabulary;
}

RowResult result_of(const RowRecord& record) {
  RowResult row{record.token, record.logprob, {}, {}};
  for (int32_t i = 0; i < record.top_count; ++i)
    row.top.emplace_back(record.top_tokens[i], record.top_logprobs[i]);
  return row;
}

StepResult Mailbox::read_result(uint64_t n) const {
  auto* self = const_cast<Mailbox*>(this);  // reads only
  StepResult result;
  result.step = n;
  const std::size_t rows = record(n).extent(StepArray::kRows).count;
  const RowRecord* records = self->result_rows(n);
  for (std::size_t r = 0; r < rows; ++r) {
    RowResult row = result_of(records[r]);
    if (records[r].has_logits) {
      const float* logits = self->result_logits(n, static_cast<int64_t>(r));
      row.logits.assign(logits, logits + capacity_.vocabulary);
    }
    result.rows.push_back(std::move(row));
  }
  return result;
}

}  // namespace ark
