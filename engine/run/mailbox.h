// The mailbox: where the host hands steps to the loops, and the loops hand results back.
//
// One memory layout for host, CPU loop and device loop: plain structs, offsets, no pointers. A slot is a StepRecord
// followed by its arrays, packed, so that a prefix of the slot is the whole message and can travel to another process
// as it is. Results lie in a ring of the same depth. The records: engine/program/device_contract.h.
//
// Order: the host writes slot n % kDepth, then raises `posted` to n (release). A loop sees posted >= n
// (acquire) and reads the slot. When a rank is through with step n it writes the result slot (rank 0 of the
// process) and raises its `done` to n (release). The host sees done >= n of all ranks (acquire), reads the
// result, and may from then on overwrite both slots with step n + kDepth. `posted` and `done` count from 0
// and are never reset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dma/counter.h"
#include "dma/region.h"
#include "engine/run/runner.h"
#include "engine/run/step.h"

namespace ark {

struct PlainStep;

// How much one step may ask for; fixes the size of a slot.
struct StepCapacity {
  int32_t tokens = 0, sequences = 0, rows = 0, bias = 0, vocabulary = 0;
  int32_t page_deltas = 0, page_copies = 0, masks = 0;

  static StepCapacity of(const RunnerLimits& limits);
};

// One of a record's arrays.
template <typename T>
std::span<const T> array_of(const StepRecord& record, StepArray which) {
  const auto* start = reinterpret_cast<const std::byte*>(&record) + record.extent(which).offset;
  return {reinterpret_cast<const T*>(start), record.extent(which).count};
}

// Bytes of a record that holds as much as `capacity` allows.
uint64_t record_bytes(const StepCapacity& capacity);
// The row's token, logprobs and top; logits are the caller's.
RowResult result_of(const RowRecord& record);
// Serialises into `slot`. Throws Error(kInternal) naming the array that is larger than `capacity`, or the
// field that is out of range.
void write_record(const StepDescriptor& step, uint64_t number, const StepCapacity& capacity,
                  std::span<std::byte> slot);

// Where a mailbox keeps what, in bytes from its base; for loops that read it without this class. The head is
// counters of 64 bytes, value first: `posted`, then `done` of each rank. Slot and result slot of step n are
// the (n % kDepth)-th.
struct MailboxLayout {
  uint64_t slots = 0, slot_bytes = 0;
  uint64_t vals = 0;  // in a slot: the values of Program::vals, i64 [ranks][vals_each]; device loops only
  uint64_t vals_each = 0;
  uint64_t results = 0, result_bytes = 0;
  uint64_t logits = 0;  // in a result slot, f32 [rows][vocabulary]; RowRecords lie at its start
  uint64_t bytes = 0;   // of it all

  static MailboxLayout of(const StepCapacity& capacity, int ranks, uint64_t vals_each = 0);
};

class Mailbox {
 public:
  static constexpr uint64_t kDepth = 4;

  // `ranks`: readers of this process.
  Mailbox(const StepCapacity& capacity, int ranks);
  // In zeroed memory of layout.bytes that somebody else owns.
  Mailbox(const StepCapacity& capacity, int ranks, const MailboxLayout& layout, std::byte* memory);

  const MailboxLayout& layout() const { return layout_; }

  // Host side. `free_slot` is where step n = posted + 1 goes; publish() raises `posted`.
  uint64_t posted() const { return posted_count_; }
  std::span<std::byte> free_slot();
  // Fills it with another process's posted_record(), checked for its size and number only.
  void copy_record(std::span<const std::byte> bytes);
  // What is in the slot of the last published step, as it may travel; valid until step n + kDepth.
  std::span<const std::byte> posted_record() const;
  // Plain programs, whose steps never leave the process: what step n runs on. Set before it is published.
  const PlainStep*& plain(uint64_t n) { return plain_[n % kDepth]; }
  void publish();
  // Whether all ranks are through with step n.
  bool is_done(uint64_t n) const;
  uint64_t done_count(int rank) const { return head_->done[rank].load(); }
  // The rank that is furthest behind is waited for; returns the wait's fault.
  dma::Fault wait_done(uint64_t n, const dma::WaitContext& context);
  // Rows of finished step n. The result slot stays valid until step n + kDepth is published.
  StepResult read_result(uint64_t n) const;

  // Loop side.
  dma::Counter64& posted_counter() { return head_->posted; }
  dma::Counter64& done_counter(int rank) { return head()->done[rank]; }
  const StepRecord& record(uint64_t n) const;
  RowRecord* result_rows(uint64_t n);
  float* result_logits(uint64_t n, int64_t row);

 private:
  struct Head {
    dma::Counter64 posted;  // host writes
    dma::Counter64 done[];  // one per rank; the rank's leader writes
  };
  Head* head() { return head_; }

  StepCapacity capacity_;
  int ranks_;
  MailboxLayout layout_;
  uint64_t posted_count_ = 0;  // host's copy
  const PlainStep* plain_[kDepth] = {};
  dma::Memory memory_;  // head, slots, result slots; pages appear when touched. Or somebody else's
  Head* head_ = nullptr;
  std::byte* slots_ = nullptr;
  std::byte* results_ = nullptr;
};

}  // namespace ark
