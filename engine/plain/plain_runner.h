// Serves any decoder-like graph unchanged: explicit past and present, one sequence at a time.
//
// The oracle of every recognised model, and how graphs are served that are not row-wise. Pages are only
// counted, never used: each slot keeps its own past tensors, so kv_length must continue what the slot holds
// or be 0 (start anew).
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ir/decoder.h"
#include "engine/plain/dynamic_driver.h"
#include "engine/run/runner.h"

namespace ark {

struct PlainRunnerOptions {
  int32_t max_length = 0;  // 0: what the file says, or 2048
  int32_t max_slots = 8;
  int32_t max_tokens = 512;
  int32_t page_size = 16;
  ParallelFor parallel;
};

class PlainRunner : public StepRunner {
 public:
  // Keeps `graph` by reference. Throws Error(kUnsupported) where the dynamic driver does, or where an input
  // cannot be fed.
  PlainRunner(const Graph& graph, DecoderSignature signature, PlainRunnerOptions options);

  const RunnerLimits& limits() const override { return limits_; }
  uint64_t post(const StepDescriptor& step) override;
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override;
  void abort(const std::string& why) override;

 private:
  struct Slot {
    std::vector<Tensor> past;      // by signature_.caches; dtype undefined while empty
    std::vector<int32_t> history;  // tokens cached so far
    int32_t last = -1;
    std::optional<Error> error;  // until the slot starts anew
  };
  StepResult execute(const StepDescriptor& step);
  void run_sequence(const StepDescriptor& step, const StepSequence& sequence,
                    const std::vector<std::size_t>& rows, std::vector<RowResult>& results);
  // Runs tokens [begin, end) of the sequence; returns logits [1, n or 1, V] as f32 rows.
  Tensor run_tokens(Slot& slot, std::span<const int32_t> tokens);
  std::vector<Tensor> inputs_for(const Slot& slot, std::span<const int32_t> tokens) const;
  Dims dims_of(std::size_t input, int64_t first, int64_t run, const SymbolValues& known) const;
  void check_inputs() const;
  Tensor empty_past(const DecoderSignature::Cache& cache) const;
  RowResult answer(const StepDescriptor& step, const StepRow& row, const Slot& slot, int64_t position,
                   const Tensor& logits, int64_t index) const;

  const Graph& graph_;
  const DecoderSignature signature_;
  RunnerLimits limits_;
  DynamicDriver driver_;
  std::vector<Slot> slots_;
  std::deque<StepDescriptor> queue_;
  uint64_t posted_ = 0, done_ = 0;
  std::string aborted_;
};

}  // namespace ark
