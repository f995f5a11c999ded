#include "server/schedule/record.h"

#include <algorithm>
#include <utility>

namespace ark::schedule {
namespace {

constexpr std::chrono::milliseconds kShortWait{1};  // up to which a wait is told with the step behind it

// What `span` and the one behind it are together; of different phases, the longer one's.
void merge(Span& span, const Span& next) {
  if (next.end_ns - next.begin_ns > span.end_ns - span.begin_ns) span.phase = next.phase;
  span.end_ns = next.end_ns;
  span.steps += next.steps, span.tokens += next.tokens;
  span.prompts_beside += next.prompts_beside;
  span.drafts += next.drafts, span.most_streams = std::max(span.most_streams, next.most_streams);
  span.shares.add(next.shares);
}

}  // namespace

const char* name_of(Phase phase) {
  constexpr const char* kNames[] = {"queue", "prompt", "stream", "send"};
  return kNames[static_cast<std::size_t>(phase)];
}

void Ledger::add(const StepFacts& step) {
  total.add(shares_of_waiting(step));
  last = step;
}

Record::Record(Origin from, int32_t prompt, Clock::time_point arrival)
    : origin(std::move(from)), prompt_tokens(prompt), queued(arrival), told_(arrival) {
  spans.reserve(kSpans);
}

// It came while a step was computed that is in the ledger already.
void Record::begin(const Ledger& ledger) {
  seen_ = ledger.total;
  const auto inside = ledger.last.end - std::max(ledger.last.begin, queued);
  if (inside <= Clock::duration::zero()) return;
  const Shares waited = shares_of_wait(inside.count(), shares_of_waiting(ledger.last), false);
  add(Phase::kQueue, ledger.last.end, wait(ledger.last.end, waited, false));
}

void Record::step(const Ledger& ledger, const StepPart& part) {
  const StepFacts& facts = ledger.last;
  const Shares others = difference(difference(ledger.total, seen_), shares_of_waiting(facts));
  Shares shares = wait(facts.begin, others, part.waited_for_pages, part.peers_ns);
  if (facts.begin - told_ > kShortWait) add(Phase::kQueue, facts.begin, std::exchange(shares, {}));
  shares.add(shares_of(facts, part));
  add(part.prompt > 0 ? Phase::kPrompt : Phase::kStream, facts.end, shares);
  seen_ = ledger.total;
  Span& span = spans.back();
  ++span.steps;
  span.tokens += part.prompt;
  span.prompts_beside += facts.prompts - part.prompt;
  span.drafts += facts.drafts;
  span.most_streams = std::max(span.most_streams, facts.decodes);
  if (facts.cost.lost_ns > std::exchange(worst_lost_, std::max(worst_lost_, facts.cost.lost_ns)))
    lost_rank = facts.cost.lost_rank;
  if (facts.cost.late_ns > std::exchange(worst_late_, std::max(worst_late_, facts.cost.late_ns)))
    late_rank = facts.cost.late_rank;
}

void Record::token(Clock::time_point now) {
  if (++generated == 1) {
    to_first = total;
    first_token = now;
  } else if (const int64_t ns = (now - last_token_).count(); ns > pause_ns) {
    pause = since_token_;
    pause_ns = ns;
    pause_at_ns = since_arrival(last_token_);
  }
  if (!spans.empty() && spans.back().phase == Phase::kStream) ++spans.back().tokens;
  since_token_ = {};
  last_token_ = now;
}

void Record::finish(const Ledger& ledger, Clock::time_point now) {
  finished = last_byte = now;
  if (now > told_) add(Phase::kQueue, now, wait(now, difference(ledger.total, seen_), false));
}

void Record::close(const char* how, Clock::time_point when_scheduled, int32_t cached,
                   int32_t times_preempted) {
  outcome = how;
  scheduled = when_scheduled;
  cached_tokens = cached;
  preemptions = times_preempted;
}

void Record::sent(Clock::time_point now, std::chrono::nanoseconds blocked) {
  blocked_ns = blocked.count();
  const int64_t ns = (now - finished).count();
  if (ns <= 0) return;
  Shares shares;
  shares[Cause::kReader] = std::min(ns, blocked_ns);
  shares[Cause::kServer] = ns - shares[Cause::kReader];
  add(Phase::kSend, now, shares);
  last_byte = now;
}

Shares Record::wait(Clock::time_point end, const Shares& steps, bool for_pages, int64_t peers_ns) const {
  return shares_of_wait((end - told_).count(), steps, for_pages, peers_ns);
}

void Record::add(Phase phase, Clock::time_point end, const Shares& shares) {
  total.add(shares);
  since_token_.add(shares);
  if (spans.size() == kSpans) merge_spans();
  spans.push_back({.phase = phase, .begin_ns = since_arrival(told_), .end_ns = since_arrival(end)});
  spans.back().shares = shares;
  told_ = end;
}

// Each with the next one of its phase; where that makes no room, each with the next.
void Record::merge_spans() {
  for (const bool any : {false, true}) {
    std::vector<Span>::iterator out = spans.begin();
    bool is_merged = false;  // what `out` holds
    for (auto it = spans.begin() + 1; it != spans.end(); ++it) {
      if (!is_merged && (any || it->phase == out->phase)) {
        merge(*out, *it);
        is_merged = true;
      } else {
        *++out = *it;
        is_merged = false;
      }
    }
    spans.erase(out + 1, spans.end());
    if (spans.size() <= kSpans * 3 / 4) return;
  }
}

}  // namespace ark::schedule
