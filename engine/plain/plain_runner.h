// Serves any decoder-like graph unchanged: explicit past and present, one sequence at a time.
//
// The oracle of every recognised model, and how graphs are served that are not row-wise. Pages are only
// counted, never used: each slot keeps its own past tensors, so kv_length must continue what the slot holds
// or be 0 (start anew). Steps run on a thread of the runner's own: what nobody waits for any more is given up, however
// long it would take.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/ir/decoder.h"
#include "engine/plain/dynamic_driver.h"
#include "engine/plain/step_inputs.h"
#include "engine/run/runner.h"

namespace ark {

struct PlainRunnerOptions {
  int32_t max_length = 0;  // 0: what the file says, or 2048
  int32_t max_slots = 8;
  int32_t max_tokens = 512;
  bool parts_prompts = true;  // false: what is computed of a token may depend on how many are read with it
  int32_t page_size = 16;
  ParallelFor parallel;
  RunLimits limits;  // of each run of the graph
};

class PlainRunner : public StepRunner {
 public:
  // Keeps `graph` by reference. Throws Error(kUnsupported) where the dynamic driver does, or where an input
  // cannot be fed.
  PlainRunner(const Graph& graph, DecoderSignature signature, PlainRunnerOptions options);
  ~PlainRunner() override;

  const RunnerLimits& limits() const override { return limits_; }
  uint64_t post(const StepDescriptor& step) override;
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override;
  void give_up(int32_t slot) override;
  void abort(const std::string& why) override;

 private:
  struct Slot {
    std::vector<Tensor> past;      // by inputs_.carried(); empty before the first token
    std::vector<int32_t> history;  // tokens cached so far
    int32_t last = -1;
    std::optional<Error> error;  // until the slot starts anew
  };
  void run_steps();
  StepResult execute(const StepDescriptor& step, uint64_t number);
  void begin_sequence(int32_t slot, uint64_t step);
  void run_sequence(const StepDescriptor& step, const StepSequence& sequence,
                    const std::vector<std::size_t>& rows, std::vector<RowResult>& results);
  // Runs tokens [begin, end) of the sequence; returns logits [1, n or 1, V] as f32 rows.
  Tensor run_tokens(Slot& slot, std::span<const int32_t> tokens);
  RowResult answer(const StepDescriptor& step, const StepRow& row, const Slot& slot, int64_t position,
                   const Tensor& logits, int64_t index) const;

  const Graph& graph_;
  const DecoderSignature signature_;
  const StepInputs inputs_;
  RunnerLimits limits_;
  DynamicDriver driver_;
  const std::function<bool()> stopped_ = [this] { return is_stopped_.load(std::memory_order_relaxed); };
  std::vector<Slot> slots_;               // the thread's
  std::atomic<bool> is_stopped_ = false;  // what runs now

  std::mutex mutex_;                 // guards what follows
  std::condition_variable changed_;  // any of it
  std::deque<StepDescriptor> queue_;
  std::deque<StepResult> results_;
  uint64_t posted_ = 0, taken_ = 0, polled_ = 0;  // steps; what is taken runs or is done
  std::map<int32_t, uint64_t> given_up_;          // by slot: steps up to this one
  int32_t running_ = -1;                          // slot
  std::exception_ptr failure_;
  std::string aborted_;
  bool is_ending_ = false;

  std::thread thread_;  // last: uses all of the above
};

}  // namespace ark
