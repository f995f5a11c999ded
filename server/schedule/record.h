// The flight recorder of one sequence: what it waited for and what its steps took, from arrival to the last byte. Of a
// fixed size, whatever it goes through: adding a step allocates nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/schedule/blame.h"

namespace ark::schedule {

// Where a request comes from: what its records are found by.
struct Origin {
  std::string model;                // by its name
  std::string id;                   // x-request-id
  std::string trace_id, parent_id;  // of a W3C traceparent, lower-case hexadecimal; "" without one
  uint64_t number = 0;              // of the HTTP request: all of its sequences have the same
  bool is_sampled = true;           // whether spans of it are wanted
};

enum class Phase : uint8_t { kQueue, kPrompt, kStream, kSend };
const char* name_of(Phase phase);

// Neighbouring steps, or a wait. Times are nanoseconds since the arrival.
struct Span {
  Phase phase = Phase::kQueue;
  int64_t begin_ns = 0, end_ns = 0;
  int32_t steps = 0, tokens = 0;  // tokens: of the prompt, or generated
  int32_t prompts_beside = 0;     // tokens of others' prompts in these steps
  int32_t drafts = 0, most_streams = 0;
  Shares shares;
};

// What the scheduler's steps took so far, as sequences that wait see it. Scheduler thread only.
struct Ledger {
  Shares total;
  StepFacts last;  // the latest step

  void add(const StepFacts& step);
};

// The scheduler's thread writes it until the sequence is finished, then it belongs to the ticket.
class Record {
 public:
  using Clock = StepFacts::Clock;
  static constexpr std::size_t kSpans = 64;  // then neighbours are merged: the whole life, told more coarsely

  Record(Origin from, int32_t prompt_tokens, Clock::time_point arrival);

  // The scheduler has taken it up.
  void begin(const Ledger& ledger);
  // A step that it takes part in; `ledger` has it already.
  void step(const Ledger& ledger, const StepPart& part);
  // A token of its own came.
  void token(Clock::time_point now);
  void finish(const Ledger& ledger, Clock::time_point now);
  // What only the ticket knows.
  void close(const char* how, Clock::time_point when_scheduled, int32_t cached, int32_t times_preempted);
  // All is sent, for which the client let the connection wait for `blocked`.
  void sent(Clock::time_point now, std::chrono::nanoseconds blocked);

  Origin origin;
  int32_t prompt_tokens = 0, cached_tokens = 0, generated = 0, preemptions = 0;
  const char* outcome = "";  // "stop", "length", "cancelled", "failed"
  Clock::time_point queued, scheduled{}, first_token{}, finished{}, last_byte{};
  int64_t blocked_ns = 0;                  // that its bytes lay unsent, also while tokens were still to come
  int32_t lost_rank = -1, late_rank = -1;  // of the step that lost most by them
  // Until the first token, over all, and in the longest pause between two tokens.
  Shares to_first, total, pause;
  int64_t pause_ns = 0, pause_at_ns = 0;  // its length, and when it began
  std::vector<Span> spans;

  int64_t total_ns() const { return since_arrival(last_byte); }
  int64_t first_ns() const { return since_arrival(first_token); }  // 0 without a token

 private:
  int64_t since_arrival(Clock::time_point then) const {
    return then == Clock::time_point{} ? 0 : std::chrono::nanoseconds(then - queued).count();
  }
  // What the time up to `end` went to, of which others' steps took `steps`.
  Shares wait(Clock::time_point end, const Shares& steps, bool for_pages, int64_t peers_ns = 0) const;
  void add(Phase phase, Clock::time_point end, const Shares& shares);
  void merge_spans();

  Clock::time_point told_;  // up to which all is told
  Shares seen_;             // the ledger's total then
  Shares since_token_;
  Clock::time_point last_token_{};
  int64_t worst_lost_ = 0, worst_late_ = 0;
};

// What takes a record once nobody holds its ticket any more. Any thread; short.
using RecordSink = std::function<void(std::shared_ptr<const Record>)>;

}  // namespace ark::schedule
