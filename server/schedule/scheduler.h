// Continuous batching: picks each step's tokens out of many requests and hands results back.
//
// One thread owns sequences, slots and pages; its policies are files of their own. Two steps are in flight: the token
// that step n samples is fed to step n + 1 on the device, before the scheduler has seen it. One with drafts is alone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/run/runner.h"
#include "server/schedule/state.h"
#include "server/schedule/ticket.h"
#include "server/schedule/turns.h"

namespace ark::schedule {

class Scheduler {
 public:
  // Takes the runners by reference; they outlive the scheduler, as `neighbours` do. Starts the thread. `draft_model`
  // and `neighbours` may be null.
  Scheduler(StepRunner& runner, SchedulerOptions options, RecordSink sink = {},
            StepRunner* draft_model = nullptr, PageSource* neighbours = nullptr);
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
  std::string silence() const { return runner_.silence(); }  // of a rank that may come back
  // Empty unless the runner begins anew; then why. What runs goes on afterwards, what comes waits.
  std::string restarting() const;
  SchedulerStats stats() const;
  const RunnerLimits& limits() const { return state_.limits; }
  // Any thread may look pages up, and read them from the runner.
  const PageDirectory& directory() const { return state_.pages.directory(); }

 private:
  void run();
  void loop_once();
  void compute();
  void begin_anew(const std::string& why);
  void wait_for_work();
  void wait_for_pages();
  void admit_incoming();
  void fail_all(const std::string& why);
  void publish_stats();

  StepRunner& runner_;
  const RecordSink sink_;  // of what sequences went through

  mutable std::mutex mutex_;  // guards what follows, up to the blank line
  std::condition_variable arrived_, idle_;
  std::deque<std::shared_ptr<Sequence>> incoming_;
  bool draining_ = false, stopping_ = false, is_idle_ = true, has_pages_ = false;
  std::string failure_, restarting_;
  SchedulerStats stats_;

  // Scheduler thread only.
  SchedulerState state_;
  Turns turns_;
  int64_t coreless_ns_ = 0;              // of thread_, when the step before was done
  Ticket::Clock::time_point lost_at_{};  // since when the runner is lost; zero: it is not
  std::thread thread_;
};

}  // namespace ark::schedule
