// The host's half of a loop kernel: mailbox, control words, launches, and what went wrong.
//
// A launch is a lease. post() launches the loop if it does not run; poll() launches it again if it has parked
// (idle, its lease used up, asked to by the gate) while steps are posted. Post and poll from one thread at a
// time; abort(), is_parked() from any.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/cuda/control.h"
#include "engine/cuda/gpu.h"
#include "engine/run/mailbox.h"

namespace ark::cuda {

// What one launch is told; the rest of the kernel's parameter does not change.
struct LaunchTerms {
  uint64_t first_step = 0;  // the number of the first step it runs
  uint64_t first_turn = 0;  // the same for turns: a turn is a step, or the leaving of a launch
};

struct LoopSetup {
  Kernel* kernel = nullptr;
  LaunchShape shape;
  int ranks = 1;
  uint64_t lease = 0;  // steps that a launch runs before it ends by itself; 0: unbounded
  // The kernel's parameter for a launch.
  std::function<std::vector<std::byte>(const LaunchTerms&)> parameter;
  // Of a phase, for messages.
  std::function<std::string(int rank, int phase)> phase_name;
  // Asked while a step is awaited: why the loop must end though nothing has failed here (a peer has died);
  // empty: it goes on. May be null.
  std::function<std::string()> interrupted;
  // A step that makes no progress for so long is a fault; the loop's own waits give up after it, the host's
  // watchdog half as much later.
  std::chrono::milliseconds step_deadline{120'000};
  // How long an aborted loop may take to leave; then the GPU is taken for lost.
  std::chrono::milliseconds last_words{5'000};
};

class LoopHost final : private Gate::Loop {
 public:
  // Inside Gate::Work. `gpu` and setup.kernel outlive this.
  LoopHost(Gpu& gpu, const StepCapacity& capacity, uint64_t vals_each, LoopSetup setup);
  ~LoopHost() override;  // ends the loop; steps in flight are lost

  Mailbox& mailbox() { return *mailbox_; }
  // As the kernel sees them.
  uint64_t mailbox_address() const { return mailbox_memory_.device; }
  uint64_t control_address() const { return control_.device; }
  // The slot's bytes of the step that post() will publish, and where values of expressions go.
  std::span<std::byte> free_slot() { return mailbox_->free_slot(); }
  int64_t* free_vals(int rank);
  // Publishes what free_slot() was filled with. Throws Error(kUnavailable) once something has failed.
  uint64_t post();
  std::optional<StepResult> poll(std::chrono::microseconds timeout);
  void abort(const std::string& why);
  // The same for what has happened elsewhere, such as a peer's death: told with the step, and where its blocks stood.
  void interrupt(const std::string& why);
  bool is_parked() const;
  // Whether a posted step is not yet done: then the loop may send. Any thread.
  bool is_busy() const { return completed() < mailbox_->posted_counter().load(); }
  void throw_if_failed();
  int64_t launches() const { return launches_; }

 private:
  void release_memory() noexcept;
  void request_park() noexcept override;
  bool await_end() noexcept override;

  bool is_running() noexcept;
  bool needs_launch();         // a step is posted that the running launch will not take
  uint64_t completed() const;  // steps that all ranks are through with
  void launch_if_needed();
  void watch();
  void fail(const std::string& why);
  std::string faults_text();
  void end_launch() noexcept;
  LoopControl& control() { return *reinterpret_cast<LoopControl*>(control_.host); }
  FaultRecord* records() { return reinterpret_cast<FaultRecord*>(control_.host + sizeof(LoopControl)); }

  Gpu& gpu_;
  const LoopSetup setup_;
  MappedMemory mailbox_memory_, control_;
  std::unique_ptr<Mailbox> mailbox_;
  std::unique_ptr<Launch> launch_;  // changed inside Gate::Work only, under mutex_ as well
  mutable std::mutex mutex_;        // guards launch_ and failure_; taken after the gate
  std::string failure_;
  uint64_t polled_ = 0;  // steps handed to the caller
  int64_t launches_ = 0;
  uint64_t launched_step_ = 0;  // the first of the last launch
  uint64_t seen_progress_ = 0;  // of the watchdog: steps done and the loop's beat
  std::chrono::steady_clock::time_point progress_at_, watched_at_;  // moved on; last looked at
};

}  // namespace ark::cuda
