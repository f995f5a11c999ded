// What the scheduler does with its steps, one after the other, over its state: who comes, which step goes out, what
// comes back. It knows no thread and asks no clock: the scheduler's thread drives it, and so does a simulation.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "engine/run/runner.h"
#include "server/schedule/state.h"

namespace ark::schedule {

// What scheduler and client share of a request that came at `arrival`, and what the scheduler alone has.
std::shared_ptr<Sequence> make_sequence(GenerateRequest request, RecordSink sink,
                                        std::chrono::steady_clock::time_point arrival);

class Turns {
 public:
  using Clock = std::chrono::steady_clock;

  // `finishing` is called before the client of a sequence learns that it is finished: who has an answer finds it
  // counted.
  Turns(StepRunner& runner, SchedulerState& state, std::function<void()> finishing)
      : runner_(runner), state_(state), finishing_(std::move(finishing)) {}

  // A sequence has come; it waits for a slot.
  void admit(std::shared_ptr<Sequence> sequence);
  // Between steps: ends what is cancelled, takes slots back and gives them.
  void settle(Clock::time_point now);
  // Posts as many steps as may be in flight; `clock` is asked for each.
  void post_steps(const std::function<Clock::time_point()>& clock);
  // Of the oldest step in flight.
  void take_results(StepResult result, Clock::time_point now);
  // Takes back the slots of those that are finished and in no step any more.
  void retire_finished();

  void finish(Sequence& sequence, Finish how, Clock::time_point now, Error error = {Code::kUnavailable, ""});

 private:
  bool post_step(const std::function<Clock::time_point()>& clock);
  void tell_economy(const Pace::Load& load, Clock::time_point now);
  void tell_records(const Flight& flight, Clock::time_point now, const StepCost& cost);
  void take_row(Sequence& sequence, int32_t index, RowResult& row, Clock::time_point now);

  StepRunner& runner_;
  SchedulerState& state_;
  const std::function<void()> finishing_;
  uint64_t last_arrival_ = 0;
};

}  // namespace ark::schedule
