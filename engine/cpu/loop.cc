// The persistent loop: a gang of ranks x processors threads runs whole steps without the host in their path.
//
// A launch is a lease: the gang returns its threads after `lease` steps, or when no step has come for a while
// (parked); post() launches it again. The gang's leader (rank 0, processor 0 of this process) alone looks at
// the mailbox; each rank's processor 0 reads the descriptor for its rank.
#include <atomic>
#include <condition_variable>

#include "base/error.h"
#include "engine/cpu/host_side.h"
#include "engine/cpu/pool.h"
#include "engine/cpu/processor_meter.h"

namespace ark {
namespace {

// How long the leader waits for the next step before the gang parks. Longer than a scheduler's turn.
constexpr std::chrono::milliseconds kLinger{2};

class Loop final : public CpuExecutor {
 public:
  ~Loop() override {
    if (!ranks_.empty()) abort("shut down");
    std::unique_lock lock(mutex_);
    parked_.wait(lock, [this] { return !running_; });
  }

  // Once the gang has left: another rank's processors may still be in the step that poll() has returned.
  Timeline timeline() override {
    std::unique_lock lock(mutex_);
    parked_.wait(lock, [this] { return !running_; });
    ARK_CHECK(!rings_.empty(), "a timeline of a loop that records none");
    std::vector<TraceEvent> events;
    for (const TraceRing& ring : rings_)
      events.insert(events.end(), ring.events().begin(), ring.events().end());
    std::vector<std::vector<std::string>> phases;
    for (const auto& rank : ranks_) phases.push_back(phase_names(rank->program()));
    return make_timeline(events, options_.trace_events, std::move(phases));
  }

  bool is_parked() const override {
    const std::lock_guard lock(mutex_);
    return !running_;
  }

 private:
  // What the processors of a rank tell each other between steps.
  struct RankControl {
    dma::Counter64 ready;    // turns that the rank's leader has opened
    dma::Counter64 through;  // processors that have run a step, over all steps
  };

  void on_prepared() override {
    controls_ = std::vector<RankControl>(ranks_.size());
    meters_ = std::vector<ProcessorMeter>(ranks_.size() * options_.processors);
    costs_.resize(Mailbox::kDepth * meters_.size());
    if (options_.trace_events > 0)
      rings_.assign(ranks_.size() * options_.processors, TraceRing(options_.trace_events));
  }

  StepCost cost_of_step(uint64_t n) const override {
    const auto each = static_cast<std::size_t>(options_.processors);
    const auto all = std::span(costs_).subspan(n % Mailbox::kDepth * meters_.size(), meters_.size());
    std::vector<RankCost> ranks;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      ranks.push_back({ranks_[r]->index(), all.subspan(r * each, each)});
    return cost_of(ranks, ranks_[0]->program().ranks);
  }

  void on_post() override {
    const std::lock_guard lock(mutex_);
    if (!running_) launch();
  }

  dma::Fault await_step(uint64_t n, std::chrono::microseconds timeout) override {
    dma::WaitContext context = step_context(0);
    context.deadline = dma::Deadline::after(timeout);
    return mailbox_->wait_done(n, context);
  }

  // Under mutex_; no thread of the gang is alive. Throws std::system_error where one cannot be started; then none runs.
  void launch() {
    gang_ = static_cast<int>(ranks_.size()) * options_.processors;
    Pool::shared().launch(gang_, options_.first_cpu, [this](int member) { run(member); });
    running_ = true;
    alive_ = gang_;
  }

  void run(int member) {
    meters_[member].begin();
    const auto rank = static_cast<std::size_t>(member / options_.processors);
    try {
      run_steps(rank, member % options_.processors);
    } catch (const std::exception&) {
      // What a kernel refuses of its operands is the model's fault or the inputs', not the loop's.
      const Error error = current_error();
      const bool is_refusal = error.code() == Code::kBadModel || error.code() == Code::kInvalidArgument;
      fail("rank " + std::to_string(ranks_[rank]->index()) + ": " + error.what(), dma::AbortReason::kFault,
           is_refusal ? error.code() : Code::kUnavailable);
    }
    const std::lock_guard lock(mutex_);
    if (--alive_ > 0) return;
    // The last one out: all others have left, what came meanwhile starts the next lease.
    running_ = false;
    turns_ += leased_ + 1;
    completed_ += leased_;
    leased_ = 0;
    try {
      if (mailbox_->posted_counter().load() > completed_ && !abort_flag(0).raised()) return launch();
    } catch (const std::exception&) {
      fail(std::string("the loop cannot go on: ") + current_error().what(), dma::AbortReason::kFault);
    }
    parked_.notify_all();
  }

  // One processor of one rank: the twin of consume() in engine/cuda/loop.h, with the same names. False: it leaves.
  void run_steps(std::size_t r, int32_t processor) {
    for (uint64_t step = completed_ + 1, turn = turns_ + 1;; ++step, ++turn) {
      if (!open_turn(r, processor, turn, step)) return;
      if (!run_instances(r, processor)) return;
      if (!close_step(r, processor, step)) return;
    }
  }

  // The gang's leader.
  void lead_turn(uint64_t turn, uint64_t step) {
    if (!await_post(step)) stop_at_.store(turn, std::memory_order_relaxed);
    go_.raise();  // release: publishes stop_at_ and, by the acquire in await_post, the posted slot
  }

  bool open_turn(std::size_t r, int32_t processor, uint64_t turn, uint64_t step) {
    dma::Counter64& ready = controls_[r].ready;
    if (processor != 0) return reached(ready, turn, "the rank's leader", r, processor) && !is_last(turn);
    if (r == 0)
      lead_turn(turn, step);
    else if (!reached(go_, turn, "the gang's leader", r, processor))
      return false;
    const bool leaves = is_last(turn);
    if (!leaves) ranks_[r]->begin_step(step);
    ready.raise();  // release: publishes what begin_step wrote
    return !leaves;
  }

  bool close_step(std::size_t r, int32_t processor, uint64_t step) {
    dma::Counter64& through = controls_[r].through;
    const std::size_t member = r * options_.processors + processor;
    ProcessorCost& cost = costs_[step % Mailbox::kDepth * meters_.size() + member];
    cost = meters_[member].step_done();
    cost.sent = ranks_[r]->take_sent_bytes(processor);
    through.raise();  // release: publishes the last phases' results, and the cost, to the rank's leader
    if (processor != 0) return true;
    const uint64_t all = step * static_cast<uint64_t>(options_.processors);
    if (!reached(through, all, "all processors", r, processor)) return false;
    ranks_[r]->end_step(step);
    if (r == 0) ++leased_;
    return true;
  }

  // A number, not a flag: a slow processor may ask about turn t when the leader has closed t + 1 already.
  bool is_last(uint64_t turn) const { return stop_at_.load(std::memory_order_relaxed) == turn; }

  // False: the gang shall park, its lease is over, or an abort was raised.
  bool await_post(uint64_t step) {
    if (options_.lease > 0 && leased_ >= static_cast<uint64_t>(options_.lease)) return false;
    dma::WaitContext context = own_context(0, 0);
    context.deadline = dma::Deadline::after(kLinger);
    return !dma::wait_reached(mailbox_->posted_counter(), step, {.what = "next step"}, context);
  }

  bool run_instances(std::size_t r, int32_t processor) {
    Rank& rank = *ranks_[r];
    const dma::WaitContext context = own_context(r, processor);
    TraceRing* const ring = rings_.empty() ? nullptr : &rings_[r * options_.processors + processor];
    const auto trace = [ring](PhaseId phase, TraceKind kind) {
      if (ring) ring->add(phase, kind);
    };
    for (const Rank::Instance& instance : rank.schedule()) {
      trace(instance.phase, TraceKind::kWait);
      dma::Fault fault = rank.wait(instance, processor, options_.barrier, context);
      if (!fault) {
        trace(instance.phase, TraceKind::kRun);
        rank.run(instance, processor);
        trace(instance.phase, TraceKind::kPublish);
        fault = rank.finish(instance, processor, context);
      }
      if (!fault && options_.barrier) fault = rank.wait_all(instance, processor, context);
      if (fault) {
        fail(rank, fault);
        return false;
      }
    }
    trace(0, TraceKind::kDone);
    return true;
  }

  bool reached(dma::Counter64& counter, uint64_t needed, const char* what, std::size_t r, int32_t processor) {
    const dma::WaitContext context = own_context(r, processor);
    const dma::WaitPoint at{.what = what, .rank = ranks_[r]->index(), .processor = processor};
    const dma::Fault fault = dma::wait_reached(counter, needed, at, context);
    if (fault) fail(*ranks_[r], fault);
    return !fault;
  }

  // Of a processor's own thread.
  dma::WaitContext own_context(std::size_t r, int32_t processor) {
    dma::WaitContext context = step_context(r);
    context.meter = &meters_[r * options_.processors + processor].waits;
    return context;
  }

  std::vector<RankControl> controls_;   // by rank of this process
  std::vector<ProcessorMeter> meters_;  // by rank and processor
  std::vector<ProcessorCost> costs_;    // of the last steps, as results in the mailbox; likewise
  std::vector<TraceRing> rings_;        // by rank and processor; none without a timeline
  dma::Counter64 go_;                   // turns that the gang's leader has opened
  std::atomic<uint64_t> stop_at_{0};    // the turn at which all leave; leader, before go_ of that turn
  uint64_t leased_ = 0;  // steps of this lease: gang leader; the last one out after all have left

  mutable std::mutex mutex_;  // guards all below; completed_ and turns_ change only while no thread runs
  std::condition_variable parked_;
  bool running_ = false;
  int gang_ = 0;
  int alive_ = 0;
  uint64_t completed_ = 0;
  uint64_t turns_ = 0;
};

}  // namespace

std::unique_ptr<HostExecutor> make_loop_executor() { return std::make_unique<Loop>(); }

}  // namespace ark
