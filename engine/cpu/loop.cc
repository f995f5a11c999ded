// The persistent loop: a gang of ranks x processors threads runs whole steps without the host in their path.
//
// A launch is a lease: the gang returns its threads after `lease` steps, or when no step has come for a while
// (parked); post() launches it again. The gang's leader (rank 0, processor 0 of this process) alone looks at
// the mailbox; each rank's processor 0 reads the descriptor for its rank, and chooses how many of the rank's processors
// take part: the first ones. The others sleep until a turn is opened to them.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <optional>
#include <utility>

#include "base/error.h"
#include "engine/cpu/company.h"
#include "engine/cpu/host_side.h"
#include "engine/cpu/pool.h"
#include "engine/cpu/processor_meter.h"
#include "engine/run/step_words.h"

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
    explicit RankControl(int32_t processors) : opened(processors), company(processors), lost(processors) {}

    // By processor: turns of this lease that the rank's leader has opened to it.
    std::vector<dma::Counter64> opened;
    dma::Counter64 through;  // processors that have run a step, over all steps
    // Of the turn that is open; the leader writes them before it opens it.
    uint64_t step = 0;
    int32_t active = 0;  // processors that take part
    bool leaves = false;
    // The leader's alone.
    uint64_t all_through = 0;  // what `through` comes to with this step
    int64_t begin_ns = 0;  // of the time that `lost` is about: this step and what was since the one before
    Company company;
    std::vector<int64_t> lost;  // as for Company::step_done
  };

  void on_prepared() override {
    // The host's thread is one more: it does not take a core from those that it waits for.
    host_spin_ = dma::SpinPolicy::adapted(processors_here(ranks_[0]->program(), options_) + 1);
    for (std::size_t r = 0; r < ranks_.size(); ++r) controls_.emplace_back(options_.processors);
    meters_ = std::vector<ProcessorMeter>(ranks_.size() * options_.processors);
    costs_.resize(Mailbox::kDepth * meters_.size());
    if (options_.trace_events > 0)
      rings_.assign(ranks_.size() * options_.processors, TraceRing(options_.trace_events));
    if (options_.words_channel) words_.emplace(*group(), *options_.words_channel);
  }

  StepCost cost_of_step(uint64_t n) override {
    const auto each = static_cast<std::size_t>(options_.processors);
    const auto all = std::span(costs_).subspan(n % Mailbox::kDepth * meters_.size(), meters_.size());
    std::vector<RankCost> ranks;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      ranks.push_back(cost_of_rank(ranks_[r]->index(), all.subspan(r * each, each)));
    StepCost cost = words_ && ranks[0].rank == 0 ? words_->cost_of_step(n, ranks[0])
                                                 : cost_of(ranks, ranks_[0]->program().ranks);
    for (const ProcessorCost& processor : all) {
      cost.sent += processor.sent;
      cost.reduced += processor.reduced;
    }
    return cost;
  }

  void on_post() override {
    const std::lock_guard lock(mutex_);
    if (!running_) launch();
  }

  dma::Fault await_step(uint64_t n, std::chrono::microseconds timeout) override {
    dma::WaitContext context = step_context(0);
    context.deadline = dma::Deadline::after(timeout);
    context.spin = host_spin_;
    return mailbox_->wait_done(n, context);
  }

  // Under mutex_; no thread of the gang is alive. Throws std::system_error where one cannot be started; then none runs.
  void launch() {
    gang_ = static_cast<int>(ranks_.size()) * options_.processors;
    for (RankControl& control : controls_)
      for (dma::Counter64& opened : control.opened) opened.value.store(0, std::memory_order_relaxed);
    Pool::shared().launch(gang_, options_.seats, [this](int member) { run(member); });
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
    for (uint64_t turn = 1;; ++turn) {
      if (!(processor == 0 ? lead_turn(r, turn) : follow_turn(r, processor, turn))) return;
      if (!run_instances(r, processor)) return;
      if (!close_step(r, processor)) return;
    }
  }

  // A rank's leader: opens the lease's next turn to those that take part, the last one to all.
  bool lead_turn(std::size_t r, uint64_t turn) {
    RankControl& control = controls_[r];
    const uint64_t step = completed_ + turn;
    if (r == 0) {
      if (!await_post(step)) stop_at_.store(turns_ + turn, std::memory_order_relaxed);
      go_.raise();  // release: publishes stop_at_ and, by the acquire in await_post, the posted slot
    } else if (!reached(go_, turns_ + turn, {.what = "the gang's leader"}, r, 0)) {
      return false;
    }
    control.leaves = is_last(turns_ + turn);
    if (control.leaves) {
      control.active = options_.processors;
    } else {
      control.step = step;
      const int32_t most = ranks_[r]->most_processors(step);
      control.active = options_.yields_cores ? control.company.active(most) : most;
      control.all_through += static_cast<uint64_t>(control.active);
      if (turn == 1) control.begin_ns = dma::steady_ns();
      ranks_[r]->begin_step(step, control.active);
      pin(r, 0);
    }
    // Release: publishes the turn, and what begin_step wrote.
    for (int32_t p = 1; p < control.active; ++p) control.opened[p].raise();
    return !control.leaves;
  }

  // Other processors: the next turn that is opened to them is their `turn`-th.
  bool follow_turn(std::size_t r, int32_t processor, uint64_t turn) {
    RankControl& control = controls_[r];
    // No deadline: others may do the rank's steps for ever. Should they fail, the abort word is raised.
    dma::WaitContext context = own_context(r, processor);
    context.deadline = dma::Deadline::never();
    if (!reached(control.opened[processor], turn, {.what = "the rank's leader"}, r, processor, context))
      return false;
    if (!control.leaves) pin(r, processor);
    return !control.leaves;
  }

  // With a CPU for each, processors keep theirs; where some take no part, the system finds the others one that is free.
  void pin(std::size_t r, int32_t processor) const {
    if (options_.seats.empty() || !options_.yields_cores) return;
    static const CpuList kAny;
    const bool is_full = controls_[r].active == options_.processors;
    Pool::pin(is_full ? options_.seats[r * options_.processors + processor] : kAny);
  }

  bool close_step(std::size_t r, int32_t processor) {
    RankControl& control = controls_[r];
    const std::size_t first = control.step % Mailbox::kDepth * meters_.size() + r * options_.processors;
    const std::span<ProcessorCost> costs = std::span(costs_).subspan(first, options_.processors);
    costs[processor] = meters_[r * options_.processors + processor].step_done();
    costs[processor].sent = ranks_[r]->take_sent_bytes(processor);
    if (processor == 0) costs[processor].reduced = ranks_[r]->take_reduced();
    // Release: publishes the last phases' results, and the cost, to the rank's leader.
    control.through.raise();
    if (processor != 0) return true;
    if (!reached(control.through, control.all_through, {.what = "all processors"}, r, processor))
      return false;
    const auto active = static_cast<std::size_t>(control.active);
    std::ranges::fill(costs.subspan(active), ProcessorCost{});
    if (options_.yields_cores) {
      std::ranges::fill(control.lost, 0);
      for (std::size_t p = 0; p < active; ++p) control.lost[p] = lost_of(costs[p]);
      const int64_t now = dma::steady_ns();
      control.company.step_done(now, now - std::exchange(control.begin_ns, now), control.lost);
    }
    ranks_[r]->end_step(control.step);
    if (r == 0) ++leased_;
    if (!words_ || ranks_[r]->index() == 0) return true;
    const dma::Fault fault =
        words_->tell(control.step, cost_of_rank(ranks_[r]->index(), costs), own_context(r, 0));
    if (fault) fail(*ranks_[r], fault);
    return !fault;
  }

  // A number, not a flag: a slow rank may ask about turn t when the gang's leader has opened t + 1 already.
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
    rank.enter_step(processor);
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

  bool reached(dma::Counter64& counter, uint64_t needed, dma::WaitPoint at, std::size_t r,
               int32_t processor) {
    return reached(counter, needed, at, r, processor, own_context(r, processor));
  }
  bool reached(dma::Counter64& counter, uint64_t needed, dma::WaitPoint at, std::size_t r, int32_t processor,
               const dma::WaitContext& context) {
    at.rank = ranks_[r]->index();
    at.processor = processor;
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

  dma::SpinPolicy host_spin_;
  std::deque<RankControl> controls_;    // by rank of this process
  std::vector<ProcessorMeter> meters_;  // by rank and processor
  std::vector<ProcessorCost> costs_;    // of the last steps, as results in the mailbox; likewise
  std::vector<TraceRing> rings_;        // by rank and processor; none without a timeline
  std::optional<StepWords> words_;      // of a rank among processes
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
