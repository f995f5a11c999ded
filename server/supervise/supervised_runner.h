// A model that runs in a process of its own, as the scheduler sees it: steps go there and results come back over a
// socket. Where the process dies, stops or talks nonsense, it is killed with all that it started, and begins anew.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "dma/bootstrap/socket.h"
#include "engine/run/runner.h"

namespace ark::supervise {

// Holds no weights. Takes this process for the parent of nothing else: descendants whose parents are gone come to it,
// and it reaps whatever ends.
class SupervisedRunner : public StepRunner {
 public:
  // Starts the process, which finds `descriptor` as dma::kHandedDescriptor and calls serve_model().
  using Start = std::function<pid_t(int descriptor)>;

  // Waits until the model is loaded, and tells what is going on there. Throws what its process could not do, as Error;
  // kUnavailable if it died.
  SupervisedRunner(
      Start start, int32_t config_length,
      const std::function<void(std::string_view stage)>& on_stage = [](std::string_view) {});
  // Lets the process end in good order for a second.
  ~SupervisedRunner() override;

  // post, poll and ready throw RunnerLost; Error(kUnavailable) once the model's files are others than at first.
  const RunnerLimits& limits() const override { return limits_; }
  uint64_t post(const StepDescriptor& step) override;
  std::optional<StepResult> poll(std::chrono::microseconds timeout) override;
  bool ready(std::chrono::microseconds timeout) override;
  void give_up(int32_t slot) override;
  void abort(const std::string& why) override;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { kEnding, kLoading, kServing };

  void begin();
  void listen(dma::Deadline until);
  void send(dma::FrameKind kind, const std::string& payload, int32_t slot = 0);
  void flush();
  void take(const dma::Frame& frame);
  void take_facts(const std::string& payload);
  void take_result(const std::string& payload);
  [[noreturn]] void lose(Code code, const std::string& why);
  bool all_gone();
  void end(std::chrono::milliseconds patience);
  void check_aborted();

  // What it starts ends with the thread that calls this: one of our own, as callers' come and go.
  class Starter {
   public:
    explicit Starter(Start start);
    pid_t start(int descriptor);  // throws what Start throws

   private:
    const Start start_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable_any changed_;
    std::optional<std::packaged_task<pid_t()>> task_;
    std::jthread thread_;  // last: uses all of the above
  };
  Starter starter_;
  const int32_t config_length_;
  State state_ = State::kEnding;
  pid_t pid_ = -1;
  dma::Socket socket_;
  std::string outgoing_;  // what it has not taken yet
  std::string facts_;     // of the first process, as they came
  RunnerLimits limits_;
  int32_t machine_ranks_ = 0;
  Clock::time_point begun_, not_before_{};
  int failed_loads_ = 0;  // in a row
  std::string stage_;     // as of the last life sign
  uint32_t speaker_ = 0;  // the thread that gives them
  // Time spent listening, and since when, without a word: our own being stopped is not the process's silence.
  Clock::duration quiet_{};
  Clock::time_point listened_;

  uint64_t posted_ = 0;             // of all processes together
  std::deque<std::size_t> rows_;    // of the steps in flight: how many each wants
  std::deque<StepResult> results_;  // not yet taken by poll()

  std::mutex mutex_;  // guards aborted_
  std::string aborted_;
};

}  // namespace ark::supervise
