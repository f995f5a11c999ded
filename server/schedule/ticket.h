// What a connection and the scheduler share of one request: the token events and the cancel flag.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/run/step.h"
#include "server/schedule/constraint.h"
#include "server/schedule/record.h"

namespace ark::schedule {

// Tokens of a sequence that a step may draft: with the one that is known they are one piece of attention
// work, seldom two (split_keys()).
inline constexpr int32_t kMostDrafts = kItemTokens - 1;

struct GenerateRequest {
  std::vector<int32_t> prompt;  // token ids, >= 1
  int32_t max_tokens = 16;      // generated at most; 0: only the prompt is read (for its log-probabilities)
  int32_t min_tokens = 0;       // end tokens before this many do not end it
  SamplingParams sampling;
  std::vector<std::pair<int32_t, float>> bias;  // logit_bias
  StartConstraint constrain;                    // none: the text may be any
  std::vector<int32_t> end_ids;  // tokens that end the sequence (eos, stop_token_ids); none with ignore_eos
  int32_t top_logprobs = -1;     // -1: no log-probabilities; n >= 0: the token's own and the n best
  bool prompt_logprobs = false;  // events for the prompt's tokens too (from the second on)
  uint32_t client = 0;           // whose it is; only equal clients with equal salts share cached prompts
  std::string owner;             // the same on every server: of the client's secret, or empty
  std::string cache_salt;
  std::vector<int32_t> scope;        // who shares, if not by these three (scope_of)
  std::vector<int32_t> expected;     // what may be generated: a guess, that changes nothing but the time
  int32_t max_drafts = kMostDrafts;  // guesses that a step computes beside the next token
  Origin origin;
};

struct TokenEvent {
  int32_t token = -1;
  bool is_prompt = false;  // one of the prompt's tokens, with its log-probability
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;
};

enum class Finish : uint8_t {
  kRunning,
  kStop,    // an end token came (it is the last event)
  kLength,  // max_tokens or the model's length is reached
  kCancelled,
  kFailed,  // see Ticket::error
};

// Written by the scheduler, read by one connection. The buffer may grow to all tokens of the request
// (max_tokens + prompt), so a slow reader never blocks a step.
class Ticket {
 public:
  using Clock = std::chrono::steady_clock;

  Ticket() = default;
  // `sink` gets the record when nobody holds the ticket any more.
  Ticket(const GenerateRequest& request, RecordSink sink, Clock::time_point arrival = Clock::now());
  ~Ticket();
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  // -- connection's side
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  // Waits for more events; appends them to `into` and returns the state after them. kRunning with nothing
  // appended means that `timeout` passed.
  Finish wait(std::vector<TokenEvent>& into, std::chrono::milliseconds timeout);
  Error error() const;
  // The whole answer is sent, for which the client let us wait so long.
  void mark_sent(std::chrono::nanoseconds blocked);

  // -- scheduler's side
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  void push(TokenEvent event);
  void finish(Finish how, Error error = {Code::kUnavailable, ""});

  // When things happened; written by the scheduler before the event that follows, read after finish.
  struct Times {
    Clock::time_point queued{}, scheduled{}, first_token{}, finished{};
    int32_t preemptions = 0, cached_tokens = 0;  // of the prompt, those that were not computed for it
    int32_t drafts_right = 0, drafts_wrong = 0;  // of the expected tokens, those that were drafted
  };
  Times times() const;
  void mark_scheduled();
  void mark_preempted();
  void mark_cached(int32_t tokens);
  void mark_drafts(int32_t right, int32_t wrong);
  // Until finish().
  Record& record() { return *record_; }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenEvent> events_;  // not yet taken by wait()
  Finish state_ = Finish::kRunning;
  Error error_{Code::kUnavailable, ""};
  Times times_{.queued = Clock::now()};
  std::atomic<bool> cancelled_{false};
  std::shared_ptr<Record> record_ = std::make_shared<Record>(Origin(), 0, times_.queued);
  RecordSink sink_;
  Clock::time_point sent_{};
  std::chrono::nanoseconds blocked_{};
};

}  // namespace ark::schedule
