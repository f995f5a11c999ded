// Continuous batching: picks each step's tokens out of many requests and hands results back.
//
// One thread owns sequences, slots and pages. A step takes one token of every decoding sequence, then
// chunks of prompts within the token budget. Two steps are in flight: the token that step n samples is
// fed to step n + 1 on the device, before the scheduler has seen it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/run/runner.h"
#include "server/schedule/page_allocator.h"
#include "server/schedule/sequence.h"
#include "server/schedule/ticket.h"

namespace ark::schedule {

struct SchedulerOptions {
  int32_t max_sequences = 0;       // running at once; 0: the runner's slots
  int32_t max_batched_tokens = 0;  // of one step; 0: the runner's max_tokens
  int32_t max_queue = 256;         // waiting requests beyond which submit() refuses
};

// Counters for /metrics; monotonic but for the gauges.
struct SchedulerStats {
  int64_t running = 0, waiting = 0, pages_held = 0, pages_total = 0;  // gauges
  int64_t steps = 0, prompt_tokens = 0, generated_tokens = 0, preemptions = 0, finished = 0, cancelled = 0,
          refused = 0;
};

class Scheduler {
 public:
  // Takes the runner by reference; it outlives the scheduler. Starts the thread.
  Scheduler(StepRunner& runner, SchedulerOptions options);
  ~Scheduler();  // shutdown at once

  // Throws Error(kInvalidArgument) if the request can never run (too long, unknown token, ...),
  // kExhausted if the queue is full, kUnavailable while draining or after the runner failed.
  std::shared_ptr<Ticket> submit(GenerateRequest request);

  // No new requests; what is queued or running finishes. Returns whether all did before the deadline.
  bool drain(std::chrono::milliseconds timeout);
  // Fails what is left and stops the thread.
  void shutdown();
  // Empty while healthy; else why the runner is unusable.
  std::string failure() const;
  SchedulerStats stats() const;
  const RunnerLimits& limits() const { return runner_.limits(); }

 private:
  struct Flight {  // a posted step, and which row belongs to whom
    uint64_t step;
    std::vector<std::pair<std::shared_ptr<Sequence>, int32_t>>
        rows;  // (sequence, index of the token that the row is about)
    std::vector<std::shared_ptr<Sequence>> members;
  };

  void run();
  void loop_once();
  void wait_for_work();
  void admit_incoming();
  void drop_cancelled();
  void give_slots();
  bool post_step();
  // Adds up to `budget` tokens of `sequence`; returns how many (0: no pages or rows for it now).
  int32_t add_to_step(const std::shared_ptr<Sequence>& sequence, int32_t budget, StepDescriptor& step,
                      Flight& flight);
  bool ensure_pages(Sequence& sequence, int32_t tokens, StepDescriptor& step, const Flight& building);
  bool preempt_youngest(const Sequence& needy, const Flight& building);
  void take_results(StepResult result);
  void take_row(Sequence& sequence, int32_t index, RowResult& row);
  void finish(Sequence& sequence, Finish how, std::string error = "");
  void give_back_pages(Sequence& sequence);
  void retire_finished();
  void fail_all(const std::string& why);
  void publish_stats();

  StepRunner& runner_;
  const SchedulerOptions options_;

  mutable std::mutex mutex_;  // guards what follows, up to the blank line
  std::condition_variable arrived_, idle_;
  std::deque<std::shared_ptr<Sequence>> incoming_;
  bool draining_ = false, stopping_ = false, is_idle_ = true;
  std::string failure_;
  SchedulerStats stats_;

  // Scheduler thread only.
  PageAllocator pages_;
  std::vector<int32_t> free_slots_;
  std::deque<std::shared_ptr<Sequence>> waiting_;  // without a slot, by arrival
  std::vector<std::shared_ptr<Sequence>>
      running_;  // with a slot, by arrival; also done or preempted ones in flight
  std::deque<Flight> flights_;
  uint64_t last_arrival_ = 0;
  SchedulerStats counts_;
  std::thread thread_;
};

}  // namespace ark::schedule
