#include "server/schedule/turns.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "server/schedule/admit.h"
#include "server/schedule/batch.h"
#include "server/schedule/constrain.h"
#include "server/schedule/neighbour.h"
#include "server/schedule/order.h"
#include "server/schedule/preempt.h"
#include "server/schedule/prefix.h"
#include "server/schedule/speculate.h"

namespace ark::schedule {
namespace {

constexpr int32_t kMostRanks = 1024;  // a process whose memory is spoilt may name any

void count_rank(std::vector<int64_t>& by_rank, int32_t rank, int64_t ns) {
  if (rank < 0 || rank >= kMostRanks || ns <= 0) return;
  const auto at = static_cast<std::size_t>(rank);
  if (at >= by_rank.size()) by_rank.resize(at + 1);
  by_rank[at] += ns;
}

}  // namespace

std::shared_ptr<Sequence> make_sequence(GenerateRequest request, RecordSink sink,
                                        std::chrono::steady_clock::time_point arrival) {
  auto sequence = std::make_shared<Sequence>();
  sequence->request = std::move(request);
  sequence->tokens = sequence->request.prompt;
  sequence->scope = scope_of(sequence->request);
  sequence->asked = sequence->prompt_size();
  sequence->ticket = std::make_shared<Ticket>(sequence->request, std::move(sink), arrival);
  return sequence;
}

void Turns::admit(std::shared_ptr<Sequence> sequence) {
  sequence->arrival = ++last_arrival_;
  arrive(state_, *sequence);
  sequence->ticket->record().begin(state_.ledger);
  state_.waiting.push_back(std::move(sequence));
}

void Turns::settle(Clock::time_point now) {
  state_.now = now;
  const auto drop = [&](const std::shared_ptr<Sequence>& s) {
    if (!s->done && s->ticket->cancelled()) finish(*s, Finish::kCancelled, now);
  };
  std::ranges::for_each(state_.waiting, drop);
  std::ranges::for_each(state_.running, drop);
  std::erase_if(state_.waiting, [](const auto& s) { return s->done; });
  retire_finished();
  give_slots(state_);
  ask_neighbours(state_, runner_);
  for (const auto& s : state_.running)
    if (!s->done && !s->has_work() && s->in_flight == 0) finish(*s, Finish::kLength, now);  // max_tokens: 0
}

void Turns::post_steps(const std::function<Clock::time_point()>& clock) {
  while (static_cast<int32_t>(state_.flights.size()) < state_.limits.depth && post_step(clock)) {
  }
  const auto can_run = [](const auto& s) { return s->can_run(); };
  // Who waits for others' pages may hold those that somebody needs.
  const auto waits = [](const auto& s) { return s->waits_for_others(); };
  ARK_CHECK(!state_.flights.empty() || std::ranges::none_of(state_.running, can_run) ||
                std::ranges::any_of(state_.running, waits),
            "the scheduler has work but nothing can run");
}

bool Turns::post_step(const std::function<Clock::time_point()>& clock) {
  StepDescriptor step;
  Flight flight;
  fill_step(state_, step, flight);
  if (step.tokens.empty()) return false;
  state_.flights.push_back(std::move(flight));  // before it can be lost
  Flight& posted = state_.flights.back();
  posted.load.posted = clock();
  state_.economy.begin(posted.load.posted);
  step.processors = state_.economy.point().processors;
  posted.step = runner_.post(step);
  for (const auto& s : posted.members) s->last_step = posted.step;
  state_.pages.step_posted(posted.step);
  ++state_.counts.steps;
  state_.counts.step_sequences = static_cast<int64_t>(posted.members.size());
  state_.counts.step_tokens = static_cast<int64_t>(step.tokens.size());
  return true;
}

void Turns::take_results(StepResult result, Clock::time_point now) {
  ARK_CHECK(!state_.flights.empty() && state_.flights.front().step == result.step,
            "results of a step that is not next");
  Flight flight = std::move(state_.flights.front());
  state_.flights.pop_front();
  ARK_CHECK(result.rows.size() == flight.rows.size(), "a step's rows and results differ in number");
  tell_records(flight, now, result.cost);
  state_.pages.step_done(result.step);  // first: who has an answer finds its pages complete
  state_.counts.sent_bytes += result.cost.sent.data;
  state_.counts.unsent_zeros += result.cost.sent.zeros;
  state_.counts.reduced_by_pump += result.cost.reduced.by_pump;
  state_.counts.reduced_by_processors += result.cost.reduced.by_processors;
  count_rank(state_.counts.late_ns, result.cost.late_rank, result.cost.late_ns);
  count_rank(state_.counts.coreless_ns, result.cost.lost_rank, result.cost.lost_ns);
  state_.pace.step_done(flight.load, now);
  for (const auto& s : flight.members) --s->in_flight;
  for (std::size_t i = 0; i < flight.rows.size(); ++i)
    take_row(*flight.rows[i].first, flight.rows[i].second, result.rows[i], now);
  for (const auto& s : flight.members) count_drafts(state_, *s);
  for (const auto& s : flight.members)
    if (!s->done && !s->has_work() && s->in_flight == 0) finish(*s, Finish::kLength, now);
  tell_economy(flight.load, now);
}

void Turns::tell_economy(const Pace::Load& load, Clock::time_point now) {
  Economy& economy = state_.economy;
  if (!economy.is_on()) return;
  const auto present = std::ranges::count_if(state_.running, [](const auto& s) { return !s->done; }) +
                       std::ssize(state_.waiting);
  economy.step_done(state_.ledger.last.begin, now, load.decodes, load.prompts, static_cast<int32_t>(present));
  if (present == std::ssize(state_.waiting) && state_.flights.empty()) economy.end(now);
  state_.counts.gather = economy.point().gather;
  state_.counts.processors = economy.point().processors;
}

void Turns::tell_records(const Flight& flight, Clock::time_point now, const StepCost& cost) {
  const Pace::Load& load = flight.load;
  Ledger& ledger = state_.ledger;
  ledger.add({std::max(load.posted, ledger.last.end), now, load.decodes, load.prompts, load.drafts,
              state_.pace.alone(), cost});
  for (std::size_t i = 0; i < flight.members.size(); ++i)
    if (Sequence& s = *flight.members[i]; !s.done) s.ticket->record().step(ledger, flight.parts[i]);
}

void Turns::take_row(Sequence& s, int32_t index, RowResult& row, Clock::time_point now) {
  if (s.done || !follows(s, index)) return;
  if (row.error) return finish(s, Finish::kFailed, now, std::move(*row.error));
  const bool is_prompt = index < s.prompt_size();
  if (std::isnan(row.logprob) || (!is_prompt && row.token < 0)) {
    ++state_.counts.nonfinite;
    return finish(s, Finish::kFailed, now,
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
  s.ticket->record().token(now);
  if (s.generated() == 1)
    state_.economy.first_token(std::chrono::duration<double>(now - s.ticket->record().queued).count());
  s.ticket->push({row.token, false, row.logprob, std::move(row.top)});
  const bool ends =
      std::find(s.request.end_ids.begin(), s.request.end_ids.end(), row.token) != s.request.end_ids.end();
  const bool is_end = ends && s.generated() >= s.request.min_tokens;
  bool is_whole = false;
  try {
    is_whole = is_constrained(s) && !is_end && follow_constraint(s);
  } catch (const Error& error) {
    return finish(s, Finish::kFailed, now, error);
  }
  if (is_end || is_whole)
    finish(s, Finish::kStop, now);
  else if (static_cast<int32_t>(s.tokens.size()) >= s.target())
    finish(s, Finish::kLength, now);
  else if (!state_.limits.is_embedded(row.token))
    finish(s, Finish::kFailed, now,
           {Code::kBadModel, "the model sampled token " + std::to_string(row.token) +
                                 ", but its embedding has " + std::to_string(state_.limits.embedded) +
                                 " rows: indices element out of data bounds"});
}

void Turns::finish(Sequence& s, Finish how, Clock::time_point now, Error error) {
  s.done = true;
  if (how == Finish::kCancelled && s.in_flight > 0) runner_.give_up(s.slot);
  give_back_pages(state_, s);
  ++(how == Finish::kCancelled ? state_.counts.cancelled : state_.counts.finished);
  finishing_();
  s.ticket->record().finish(state_.ledger, now);
  s.ticket->finish(how, std::move(error));
}

void Turns::retire_finished() {
  std::erase_if(state_.running, [&](const std::shared_ptr<Sequence>& s) {
    if (!s->done || s->in_flight > 0) return false;
    state_.free_slots.push_back(s->slot);
    s->slot = -1;
    return true;
  });
}

}  // namespace ark::schedule
