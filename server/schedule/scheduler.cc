#include "server/schedule/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace ark::schedule {
namespace {

using namespace std::chrono_literals;

int32_t or_default(int32_t value, int32_t limit) { return value > 0 ? std::min(value, limit) : limit; }

}  // namespace

Scheduler::Scheduler(StepRunner& runner, SchedulerOptions options)
    : runner_(runner),
      options_{or_default(options.max_sequences, runner.limits().max_slots),
               or_default(options.max_batched_tokens, runner.limits().max_tokens), options.max_queue},
      pages_(runner.limits().pages) {
  for (int32_t slot = options_.max_sequences; slot-- > 0;) free_slots_.push_back(slot);
  publish_stats();
  thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() { shutdown(); }

std::shared_ptr<Ticket> Scheduler::submit(GenerateRequest request) {
  const RunnerLimits& limits = runner_.limits();
  const auto refuse = [](const std::string& why) { throw Error(Code::kInvalidArgument, why); };
  const auto length = static_cast<int64_t>(request.prompt.size()) + request.max_tokens;
  if (request.prompt.empty()) refuse("the prompt is empty; at least one token is needed");
  if (request.max_tokens < 0) refuse("max_tokens is negative");
  if (length > limits.max_length)
    refuse("prompt (" + std::to_string(request.prompt.size()) + " tokens) and max_tokens (" +
           std::to_string(request.max_tokens) + ") together exceed the model's context of " +
           std::to_string(limits.max_length) + " tokens");
  if (length > static_cast<int64_t>(limits.pages) * limits.page_size)
    refuse("prompt and max_tokens need " + std::to_string(length) + " tokens of KV cache, " +
           std::to_string(static_cast<int64_t>(limits.pages) * limits.page_size) +
           " exist; raise --kv-memory or ask for less");
  for (const int32_t token : request.prompt)
    if (token < 0 || token >= limits.vocabulary)
      refuse("token " + std::to_string(token) + " is not in the vocabulary of " +
             std::to_string(limits.vocabulary));
  if (request.bias.size() > kMaxBias)
    refuse("logit_bias has " + std::to_string(request.bias.size()) + " entries; the limit is " +
           std::to_string(kMaxBias));
  for (const auto& [token, bias] : request.bias)
    if (token < 0 || token >= limits.vocabulary)
      refuse("logit_bias token " + std::to_string(token) + " is not in the vocabulary of " +
             std::to_string(limits.vocabulary));

  auto sequence = std::make_shared<Sequence>();
  sequence->request = std::move(request);
  sequence->tokens = sequence->request.prompt;
  sequence->asked = sequence->prompt_size();
  sequence->ticket = std::make_shared<Ticket>();
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw Error(Code::kUnavailable, failure_);
    if (draining_ || stopping_) throw Error(Code::kUnavailable, "the server is shutting down");
    if (static_cast<int64_t>(incoming_.size()) + stats_.waiting >= options_.max_queue) {
      ++stats_.refused;
      throw Error(Code::kExhausted, "the queue of " + std::to_string(options_.max_queue) +
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
    } catch (const std::exception& e) {
      fail_all(e.what());
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
  give_slots();
  publish_stats();  // a step may take long, and who has a slot no longer waits
  while (static_cast<int32_t>(flights_.size()) < runner_.limits().depth && post_step()) {
  }
  if (!flights_.empty()) {
    if (auto result = runner_.poll(50ms)) take_results(std::move(*result));
  } else {
    ARK_CHECK(running_.empty() ||
                  std::none_of(running_.begin(), running_.end(), [](const auto& s) { return s->has_work(); }),
              "the scheduler has work but nothing can run");
  }
  retire_finished();
  publish_stats();
}

void Scheduler::wait_for_work() {
  std::unique_lock lock(mutex_);
  if (!flights_.empty() || !running_.empty() || !waiting_.empty()) return;
  if (incoming_.empty()) {
    is_idle_ = true;
    idle_.notify_all();
  }
  arrived_.wait(lock, [&] { return stopping_ || !incoming_.empty(); });
}

void Scheduler::admit_incoming() {
  std::lock_guard lock(mutex_);
  for (; !incoming_.empty(); incoming_.pop_front()) {
    incoming_.front()->arrival = ++last_arrival_;
    waiting_.push_back(std::move(incoming_.front()));
  }
  stats_.waiting = static_cast<int64_t>(waiting_.size());  // submit() counts these, too
}

void Scheduler::drop_cancelled() {
  const auto check = [&](const std::shared_ptr<Sequence>& s) {
    if (!s->done && s->ticket->cancelled()) finish(*s, Finish::kCancelled);
  };
  std::for_each(waiting_.begin(), waiting_.end(), check);
  std::for_each(running_.begin(), running_.end(), check);
  std::erase_if(waiting_, [](const auto& s) { return s->done; });
}

// Slots go to the longest waiting. A preempted sequence waits until its steps in flight have told their
// tokens.
void Scheduler::give_slots() {
  while (!waiting_.empty() && !free_slots_.empty()) {
    const std::shared_ptr<Sequence> s = waiting_.front();
    waiting_.pop_front();
    s->slot = free_slots_.back();
    free_slots_.pop_back();
    s->pages_known = 0;
    s->ticket->mark_scheduled();
    running_.insert(std::upper_bound(running_.begin(), running_.end(), s,
                                     [](const auto& a, const auto& b) { return a->arrival < b->arrival; }),
                    s);
    if (!s->has_work()) finish(*s, Finish::kLength);
  }
}

bool Scheduler::post_step() {
  StepDescriptor step;
  Flight flight{};
  for (const bool decoding : {true, false})
    for (const auto& s : running_) {
      if (!s->has_work() || s->is_decoding() != decoding) continue;
      if (s->posted == 0 && s->in_flight > 0) continue;  // preempted: its last tokens are still to be told
      const int32_t budget = options_.max_batched_tokens - static_cast<int32_t>(step.tokens.size());
      if (budget <= 0) break;
      add_to_step(s, budget, step, flight);
    }
  if (step.tokens.empty()) return false;
  flight.step = runner_.post(step);
  for (const auto& s : flight.members) s->last_step = flight.step;
  ++counts_.steps;
  flights_.push_back(std::move(flight));
  return true;
}

int32_t Scheduler::add_to_step(const std::shared_ptr<Sequence>& sequence, int32_t budget,
                               StepDescriptor& step, Flight& flight) {
  Sequence& s = *sequence;
  const RunnerLimits& limits = runner_.limits();
  const int32_t rows_left = limits.max_rows - static_cast<int32_t>(step.rows.size());
  int32_t count = std::min(s.asked - s.posted, budget);
  if (s.request.prompt_logprobs) count = std::min(count, rows_left);  // at most one row a token
  if (count <= 0 || (rows_left == 0 && s.posted + count == s.asked)) return 0;
  if (!ensure_pages(s, s.posted + count, step, flight)) return 0;

  const auto first = static_cast<int32_t>(step.tokens.size());
  step.sequences.push_back({s.slot, first, count, s.posted});
  for (int32_t i = s.posted; i < s.posted + count; ++i)
    step.tokens.push_back(i < static_cast<int32_t>(s.tokens.size()) ? s.tokens[i] : kFeedbackToken);
  StepRow row;
  row.slot = s.slot;
  row.prompt_length = s.prompt_size();
  row.top = std::max(0, s.request.top_logprobs);
  row.sampling = s.request.sampling;
  for (int32_t i = s.posted; i < s.posted + count && s.request.prompt_logprobs; ++i) {
    if (i < s.prompt_rows || i + 1 >= s.prompt_size()) continue;
    row.token = first + i - s.posted;
    row.flags = kWantLogprob;
    row.target = s.tokens[static_cast<std::size_t>(i) + 1];
    step.rows.push_back(row);
    flight.rows.emplace_back(sequence, i + 1);
    s.prompt_rows = i + 1;
  }
  s.posted += count;
  if (s.posted == s.asked && s.asked < s.target()) {
    row.token = first + count - 1;
    row.flags = kWantToken | (s.request.top_logprobs >= 0 ? kWantLogprob : 0u);
    row.target = -1;
    row.bias_first = static_cast<int32_t>(step.bias.size());
    row.bias_count = static_cast<int32_t>(s.request.bias.size());
    step.bias.insert(step.bias.end(), s.request.bias.begin(), s.request.bias.end());
    step.rows.push_back(row);
    flight.rows.emplace_back(sequence, s.asked++);
  }
  ++s.in_flight;
  flight.members.push_back(sequence);
  counts_.prompt_tokens += std::max(0, std::min(s.posted, s.prompt_size()) - (s.posted - count));
  return count;
}

bool Scheduler::ensure_pages(Sequence& s, int32_t tokens, StepDescriptor& step, const Flight& building) {
  const int32_t size = runner_.limits().page_size, needed = (tokens + size - 1) / size;
  while (static_cast<int32_t>(s.pages.size()) < needed) {
    const int32_t page = pages_.take();
    if (page >= 0) {
      s.pages.push_back(page);
      continue;
    }
    // Pages of finished steps come back by themselves; only when none is on its way, somebody must yield.
    if (pages_.obtainable() > 0 || !preempt_youngest(s, building)) return false;
  }
  for (; s.pages_known < static_cast<int32_t>(s.pages.size()); ++s.pages_known)
    step.page_deltas.push_back({s.slot, s.pages_known, s.pages[s.pages_known]});
  return true;
}

// Takes the pages of the youngest sequence that came after `needy`; it will be computed again later. Those
// that stand in the step being built stay. False if there is none: `needy` itself then waits for the older
// ones.
bool Scheduler::preempt_youngest(const Sequence& needy, const Flight& building) {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    const std::shared_ptr<Sequence> victim = *it;
    if (victim->arrival <= needy.arrival) return false;
    const bool in_step =
        std::find(building.members.begin(), building.members.end(), victim) != building.members.end();
    if (victim->done || in_step || victim->pages.empty()) continue;
    give_back_pages(*victim);
    victim->posted = 0;
    victim->ticket->mark_preempted();
    ++counts_.preemptions;
    return true;
  }
  return false;
}

void Scheduler::give_back_pages(Sequence& s) {
  for (const int32_t page : s.pages) pages_.give_back(page, s.in_flight ? s.last_step : 0);
  s.pages.clear();
  s.pages_known = 0;
}

void Scheduler::take_results(StepResult result) {
  ARK_CHECK(!flights_.empty() && flights_.front().step == result.step, "results of a step that is not next");
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  ARK_CHECK(result.rows.size() == flight.rows.size(), "a step's rows and results differ in number");
  for (const auto& s : flight.members) --s->in_flight;
  for (std::size_t i = 0; i < flight.rows.size(); ++i)
    take_row(*flight.rows[i].first, flight.rows[i].second, result.rows[i]);
  for (const auto& s : flight.members)
    if (!s->done && !s->has_work() && s->in_flight == 0) finish(*s, Finish::kLength);
  pages_.step_done(result.step);
}

void Scheduler::take_row(Sequence& s, int32_t index, RowResult& row) {
  if (s.done) return;
  if (index < s.prompt_size()) {
    s.ticket->push({s.tokens[index], true, row.logprob, std::move(row.top)});
    return;
  }
  ARK_CHECK(index == static_cast<int32_t>(s.tokens.size()), "a sampled token arrives out of order");
  s.tokens.push_back(row.token);
  ++counts_.generated_tokens;
  s.ticket->push({row.token, false, row.logprob, std::move(row.top)});
  const bool ends =
      std::find(s.request.end_ids.begin(), s.request.end_ids.end(), row.token) != s.request.end_ids.end();
  if (ends && s.generated() >= s.request.min_tokens)
    finish(s, Finish::kStop);
  else if (static_cast<int32_t>(s.tokens.size()) >= s.target())
    finish(s, Finish::kLength);
}

void Scheduler::finish(Sequence& s, Finish how, std::string error) {
  s.done = true;
  give_back_pages(s);
  ++(how == Finish::kCancelled ? counts_.cancelled : counts_.finished);
  publish_stats();  // before the client learns of it: who has an answer finds it counted
  s.ticket->finish(how, std::move(error));
}

void Scheduler::retire_finished() {
  std::erase_if(running_, [&](const std::shared_ptr<Sequence>& s) {
    if (!s->done || s->in_flight > 0) return false;
    free_slots_.push_back(s->slot);
    s->slot = -1;
    return true;
  });
}

void Scheduler::fail_all(const std::string& why) {
  std::lock_guard lock(mutex_);
  failure_ = why;
  for (auto* list : {&incoming_, &waiting_})
    for (const auto& s : *list) s->ticket->finish(Finish::kFailed, why);
  for (const auto& s : running_) s->ticket->finish(Finish::kFailed, why);
  incoming_.clear();
  waiting_.clear();
  running_.clear();
  flights_.clear();
  is_idle_ = true;
  idle_.notify_all();
}

void Scheduler::publish_stats() {
  const PageAllocator::Counts pages = pages_.counts();
  ARK_CHECK(pages.free + pages.retiring + pages.held == pages.total, "pages are lost");
  std::lock_guard lock(mutex_);
  const int64_t refused = stats_.refused;
  stats_ = counts_;
  stats_.refused = refused;
  stats_.running = std::count_if(running_.begin(), running_.end(), [](const auto& s) { return !s->done; });
  stats_.waiting = std::count_if(waiting_.begin(), waiting_.end(), [](const auto& s) { return !s->done; });
  stats_.pages_held = pages.held;
  stats_.pages_total = pages.total;
}

}  // namespace ark::schedule
