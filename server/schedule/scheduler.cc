#include "server/schedule/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "server/schedule/admit.h"
#include "server/schedule/batch.h"
#include "server/schedule/order.h"
#include "server/schedule/preempt.h"
#include "server/schedule/recover.h"
#include "server/schedule/speculate.h"

namespace ark::schedule {
namespace {

using namespace std::chrono_literals;

constexpr auto kLook = 50ms;  // between looks at what others want, and at whether the runner lives

}  // namespace

Scheduler::Scheduler(StepRunner& runner, SchedulerOptions options, RecordSink sink, StepRunner* draft_model)
    : runner_(runner), sink_(std::move(sink)), state_(runner.limits(), options) {
  if (draft_model != nullptr) state_.drafter = std::make_unique<Drafter>(*draft_model);
  publish_stats();
  thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() { shutdown(); }

std::shared_ptr<Ticket> Scheduler::submit(GenerateRequest request) {
  check(request, state_.limits);
  auto sequence = std::make_shared<Sequence>();
  sequence->request = std::move(request);
  sequence->tokens = sequence->request.prompt;
  sequence->asked = sequence->prompt_size();
  sequence->ticket = std::make_shared<Ticket>(sequence->request, sink_);
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
}

std::string Scheduler::failure() const {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return failure_;
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
  drop_cancelled();
  retire_finished();
  give_slots(state_);
  for (const auto& s : state_.running)
    if (!s->done && !s->has_work() && s->in_flight == 0) finish(*s, Finish::kLength);  // max_tokens: 0
  publish_stats();  // a step may take long, and who has a slot no longer waits
  try {
    compute();
  } catch (const RunnerLost& lost) {
    begin_anew(lost.what());
  }
  retire_finished();
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
  while (static_cast<int32_t>(state_.flights.size()) < state_.limits.depth && post_step()) {
  }
  if (!state_.flights.empty()) {
    if (auto result = runner_.poll(kLook)) take_results(std::move(*result));
  } else {
    ARK_CHECK(state_.running.empty() || std::none_of(state_.running.begin(), state_.running.end(),
                                                     [](const auto& s) { return s->has_work(); }),
              "the scheduler has work but nothing can run");
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
    finish(*culprit, Finish::kFailed,
           {Code::kUnavailable, "the model's process has died " + std::to_string(culprit->losses) +
                                    " times as it computed this request, which is not tried again: " + why});
  if (static_cast<int32_t>(state_.losses.size()) > state_.options.max_restarts)
    throw Error(Code::kUnavailable, std::to_string(state_.losses.size()) +
                                        " times within a minute, more than " +
                                        "--max-restarts, the model was lost; the last time: " + why);
}

void Scheduler::wait_for_work() {
  std::unique_lock lock(mutex_);
  if (!state_.flights.empty() || !state_.running.empty() || !state_.waiting.empty()) return;
  if (incoming_.empty()) {
    is_idle_ = true;
    idle_.notify_all();
  }
  arrived_.wait_for(lock, kLook,
                    [&] { return stopping_ || !incoming_.empty(); });  // the runner may die meanwhile
}

void Scheduler::admit_incoming() {
  std::lock_guard lock(mutex_);
  for (; !incoming_.empty(); incoming_.pop_front()) {
    incoming_.front()->arrival = ++last_arrival_;
    arrive(state_, *incoming_.front());
    incoming_.front()->ticket->record().begin(state_.ledger);
    state_.waiting.push_back(std::move(incoming_.front()));
  }
  stats_.waiting = static_cast<int64_t>(state_.waiting.size());  // submit() counts these, too
}

void Scheduler::drop_cancelled() {
  const auto check = [&](const std::shared_ptr<Sequence>& s) {
    if (!s->done && s->ticket->cancelled()) finish(*s, Finish::kCancelled);
  };
  std::for_each(state_.waiting.begin(), state_.waiting.end(), check);
  std::for_each(state_.running.begin(), state_.running.end(), check);
  std::erase_if(state_.waiting, [](const auto& s) { return s->done; });
}

bool Scheduler::post_step() {
  StepDescriptor step;
  Flight flight;
  fill_step(state_, step, flight);
  if (step.tokens.empty()) return false;
  state_.flights.push_back(std::move(flight));  // before it can be lost
  Flight& posted = state_.flights.back();
  posted.load.posted = Pace::Clock::now();
  posted.step = runner_.post(step);
  for (const auto& s : posted.members) s->last_step = posted.step;
  ++state_.counts.steps;
  state_.counts.step_sequences = static_cast<int64_t>(posted.members.size());
  state_.counts.step_tokens = static_cast<int64_t>(step.tokens.size());
  return true;
}

void Scheduler::take_results(StepResult result) {
  ARK_CHECK(!state_.flights.empty() && state_.flights.front().step == result.step,
            "results of a step that is not next");
  Flight flight = std::move(state_.flights.front());
  state_.flights.pop_front();
  ARK_CHECK(result.rows.size() == flight.rows.size(), "a step's rows and results differ in number");
  const auto now = Ticket::Clock::now();
  tell_records(flight, now, result.cost);
  state_.pace.step_done(flight.load, now);
  for (const auto& s : flight.members) --s->in_flight;
  for (std::size_t i = 0; i < flight.rows.size(); ++i)
    take_row(*flight.rows[i].first, flight.rows[i].second, result.rows[i]);
  for (const auto& s : flight.members) count_drafts(state_, *s);
  for (const auto& s : flight.members)
    if (!s->done && !s->has_work() && s->in_flight == 0) finish(*s, Finish::kLength);
  state_.pages.step_done(result.step);
}

void Scheduler::tell_records(const Flight& flight, Ticket::Clock::time_point now, const StepCost& cost) {
  const Pace::Load& load = flight.load;
  Ledger& ledger = state_.ledger;
  ledger.add({std::max(load.posted, ledger.last.end), now, load.decodes, load.prompts, load.drafts,
              state_.pace.alone(), cost});
  for (std::size_t i = 0; i < flight.members.size(); ++i)
    if (Sequence& s = *flight.members[i]; !s.done) s.ticket->record().step(ledger, flight.parts[i]);
}

void Scheduler::take_row(Sequence& s, int32_t index, RowResult& row) {
  if (s.done || !follows(s, index)) return;
  if (row.error) return finish(s, Finish::kFailed, std::move(*row.error));
  const bool is_prompt = index < s.prompt_size();
  if (std::isnan(row.logprob) || (!is_prompt && row.token < 0)) {
    ++state_.counts.nonfinite;
    return finish(s, Finish::kFailed,
                  {Code::kBadModel, "the model's logits for token " + std::to_string(index) +
                                        " are not finite (NaN or infinity): its weights or its arithmetic "
                                        "overflow"});
  }
  if (is_prompt) {
    s.ticket->push({s.tokens[index], true, row.logprob, std::move(row.top)});
    return;
  }
  ARK_CHECK(index == static_cast<int32_t>(s.tokens.size()), "a sampled token arrives out of order");
  s.tokens.push_back(row.token);
  ++state_.counts.generated_tokens;
  s.ticket->record().token(state_.ledger.last.end);
  s.ticket->push({row.token, false, row.logprob, std::move(row.top)});
  const bool ends =
      std::find(s.request.end_ids.begin(), s.request.end_ids.end(), row.token) != s.request.end_ids.end();
  if (ends && s.generated() >= s.request.min_tokens)
    finish(s, Finish::kStop);
  else if (static_cast<int32_t>(s.tokens.size()) >= s.target())
    finish(s, Finish::kLength);
  else if (!state_.limits.is_embedded(row.token))
    finish(s, Finish::kFailed,
           {Code::kBadModel, "the model sampled token " + std::to_string(row.token) +
                                 ", but its embedding has " + std::to_string(state_.limits.embedded) +
                                 " rows: indices element out of data bounds"});
}

void Scheduler::finish(Sequence& s, Finish how, Error error) {
  s.done = true;
  give_back_pages(state_, s);
  ++(how == Finish::kCancelled ? state_.counts.cancelled : state_.counts.finished);
  publish_stats();  // before the client learns of it: who has an answer finds it counted
  s.ticket->record().finish(state_.ledger, Ticket::Clock::now());
  s.ticket->finish(how, std::move(error));
}

void Scheduler::retire_finished() {
  std::erase_if(state_.running, [&](const std::shared_ptr<Sequence>& s) {
    if (!s->done || s->in_flight > 0) return false;
    state_.free_slots.push_back(s->slot);
    s->slot = -1;
    return true;
  });
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
