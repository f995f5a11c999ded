#include "server/schedule/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "server/schedule/admit.h"
#include "server/schedule/constrain.h"
#include "server/schedule/recover.h"

namespace ark::schedule {
namespace {

using namespace std::chrono_literals;

constexpr auto kLook = 50ms;  // between looks at what others want, and at whether the runner lives

}  // namespace

Scheduler::Scheduler(StepRunner& runner, SchedulerOptions options, RecordSink sink, StepRunner* draft_model,
                     PageSource* neighbours)
    : runner_(runner),
      sink_(std::move(sink)),
      state_(runner.limits(), options),
      turns_(runner, state_, [this] { publish_stats(); }) {
  if (draft_model != nullptr) state_.drafter = std::make_unique<Drafter>(*draft_model);
  state_.neighbours = neighbours;
  if (neighbours)
    neighbours->on_arrival([this] {
      {
        const std::lock_guard lock(mutex_);
        has_pages_ = true;
      }
      arrived_.notify_one();
    });
  publish_stats();
  thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() { shutdown(); }

std::shared_ptr<Ticket> Scheduler::submit(GenerateRequest request) {
  check(request, state_.limits);
  const std::shared_ptr<Sequence> sequence = make_sequence(std::move(request), sink_, Ticket::Clock::now());
  begin_constraint(*sequence, state_.limits.vocabulary);
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw Error(Code::kUnavailable, failure_);
    if (draining_ || stopping_) throw Error(Code::kUnavailable, "the server is shutting down");
    if (static_cast<int64_t>(incoming_.size()) + stats_.waiting >= state_.options.max_queue) {
      ++stats_.refused;
      throw Error(Code::kExhausted, "the queue of " + std::to_string(state_.options.max_queue) +
                                        " requests is full; try again later");
    }
    incoming_.push_back(sequence);
    is_idle_ = false;
  }
  arrived_.notify_one();
  return sequence->ticket;
}

bool Scheduler::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  return idle_.wait_for(lock, timeout, [&] { return is_idle_ || stopping_; }) && is_idle_;
}

void Scheduler::shutdown() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_one();
  if (thread_.joinable()) thread_.join();
  if (state_.neighbours) state_.neighbours->on_arrival({});
}

std::string Scheduler::failure() const {
  {
    std::lock_guard lock(mutex_);
    // In a step the runner tells where that stood, too, to the thread that polls it.
    if (!failure_.empty() || !is_idle_) return failure_;
  }
  return runner_.failure();
}

std::string Scheduler::restarting() const {
  std::lock_guard lock(mutex_);
  return restarting_;
}

SchedulerStats Scheduler::stats() const {
  std::lock_guard lock(mutex_);
  SchedulerStats all = stats_;
  all.waiting += static_cast<int64_t>(incoming_.size());
  return all;
}

void Scheduler::run() {
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    try {
      loop_once();
    } catch (const std::exception&) {
      fail_all(current_error().what());
      return;
    }
  }
  fail_all("the server is shutting down");
}

void Scheduler::loop_once() {
  wait_for_work();
  admit_incoming();
  turns_.settle(Ticket::Clock::now());
  publish_stats();  // a step may take long, and who has a slot no longer waits
  try {
    compute();
  } catch (const RunnerLost& lost) {
    begin_anew(lost.what());
  }
  turns_.retire_finished();
  publish_stats();
}

void Scheduler::compute() {
  if (!runner_.ready(kLook)) return;
  {
    std::lock_guard lock(mutex_);
    restarting_.clear();
  }
  if (lost_at_ != Ticket::Clock::time_point{})
    state_.ledger.total[Cause::kRestart] += (Ticket::Clock::now() - std::exchange(lost_at_, {})).count();
  if (state_.flights.empty()) coreless_ns_ = coreless_ns();  // what it lacked before is no step's
  turns_.post_steps([] { return Ticket::Clock::now(); });
  if (state_.flights.empty()) return wait_for_pages();
  if (auto result = runner_.poll(kLook)) {
    // A step is not over before this thread has a core to see it.
    const int64_t before = std::exchange(coreless_ns_, coreless_ns()), own = coreless_ns_ - before;
    if (StepCost& cost = result->cost; own > cost.lost_ns) cost.lost_ns = own, cost.lost_rank = -1;
    turns_.take_results(std::move(*result), Ticket::Clock::now());
  }
}

void Scheduler::begin_anew(const std::string& why) {
  log_line(LogLevel::kWarning, "the model is lost and begins anew", {{"why", why}});
  if (lost_at_ == Ticket::Clock::time_point{}) lost_at_ = Ticket::Clock::now();
  {
    std::lock_guard lock(mutex_);
    restarting_ = why;
  }
  ++state_.counts.restarts;
  if (const std::shared_ptr<Sequence> culprit = take_back(state_))
    turns_.finish(
        *culprit, Finish::kFailed, Ticket::Clock::now(),
        {Code::kUnavailable, "the model's process has died " + std::to_string(culprit->losses) +
                                 " times as it computed this request, which is not tried again: " + why});
  if (static_cast<int32_t>(state_.losses.size()) > state_.options.max_restarts)
    throw Error(Code::kUnavailable, std::to_string(state_.losses.size()) +
                                        " times within a minute, more than " +
                                        "--max-restarts, the model was lost; the last time: " + why);
}

void Scheduler::wait_for_work() {
  std::unique_lock lock(mutex_);
  if (!state_.flights.empty() || !state_.running.empty()) return;
  if (!state_.waiting.empty()) {
    const auto until = std::min(state_.held_until, Ticket::Clock::now() + kLook);  // who is held may go, too
    arrived_.wait_until(lock, until, [&] { return stopping_ || !incoming_.empty(); });
    return;
  }
  if (incoming_.empty()) {
    is_idle_ = true;
    idle_.notify_all();
  }
  arrived_.wait_for(lock, kLook,
                    [&] { return stopping_ || !incoming_.empty(); });  // the runner may die meanwhile
}

// Of others: nothing else can run.
void Scheduler::wait_for_pages() {
  if (std::ranges::none_of(state_.running, [](const auto& s) { return s->waits_for_others(); })) return;
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, kLook, [&] { return stopping_ || !incoming_.empty() || has_pages_; });
  has_pages_ = false;
}

void Scheduler::admit_incoming() {
  std::lock_guard lock(mutex_);
  // Each stays here until it is there: what fails in between loses nobody.
  for (; !incoming_.empty(); incoming_.pop_front()) turns_.admit(incoming_.front());
  stats_.waiting = static_cast<int64_t>(state_.waiting.size());  // submit() counts these, too
}

void Scheduler::fail_all(const std::string& why) {
  std::lock_guard lock(mutex_);
  failure_ = why;
  const Error error(Code::kUnavailable, why);
  const auto fail = [&](const auto& sequences) {
    for (const auto& s : sequences) {
      if (!s->done) s->ticket->record().finish(state_.ledger, Ticket::Clock::now());
      s->ticket->finish(Finish::kFailed, error);
    }
  };
  fail(incoming_), fail(state_.waiting), fail(state_.running);
  incoming_.clear();
  state_.waiting.clear();
  state_.running.clear();
  state_.flights.clear();
  is_idle_ = true;
  idle_.notify_all();
}

void Scheduler::publish_stats() {
  const PageAllocator::Counts pages = state_.pages.counts();
  int64_t holders = 0;
  for (const auto& s : state_.running) holders += static_cast<int64_t>(s->pages.size());
  ARK_CHECK(holders == pages.holders, "pages are held by nobody");
  std::lock_guard lock(mutex_);
  const int64_t refused = stats_.refused;
  stats_ = state_.counts;
  stats_.refused = refused;
  stats_.running =
      std::count_if(state_.running.begin(), state_.running.end(), [](const auto& s) { return !s->done; });
  stats_.waiting =
      std::count_if(state_.waiting.begin(), state_.waiting.end(), [](const auto& s) { return !s->done; });
  stats_.pages_held = pages.held;
  stats_.pages_cached = pages.cached;
  stats_.pages_total = pages.total;
}

}  // namespace ark::schedule
