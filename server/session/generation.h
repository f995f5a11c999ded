// One sequence: its ticket, its detokenizer, its stop strings.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/schedule/ticket.h"
#include "server/session/model.h"
#include "server/text/detokenizer.h"
#include "server/text/stop_checker.h"

namespace ark::session {

// How a sequence's tokens become text.
struct TextOptions {
  std::vector<std::string> stop;
  bool include_stop = false;  // stop strings and stop tokens are part of the text
  bool skip_special = true;
  bool goes_on = false;  // behind the prompt, with the space that stands between; else a text by itself
};

// A token with its log-probability and its place in the sequence's text.
struct TokenScore {
  int32_t id = -1;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;
  std::size_t begin = 0, end = 0;  // bytes; equal where the token adds no whole character
};

// What became certain since the last time.
struct Piece {
  std::string text;
  // Of the tokens whose text is out; empty unless log-probabilities are asked for.
  std::vector<TokenScore> scores;
  std::vector<int32_t> ids;  // all tokens that were sampled, also those that ended the sequence
  std::vector<schedule::TokenEvent> prompt;  // log-probabilities of the prompt's tokens, from the second on
};

// What ended a sequence: a stop string, one of the request's own end tokens, or neither (the model's end of text, or
// the length).
using StopReason = std::variant<std::monostate, std::string, int32_t>;

// Owned by one thread. Destruction cancels what still runs.
class Generation {
 public:
  // Submits; see Scheduler::submit for what it throws. `model` outlives it.
  Generation(Model& model, schedule::GenerateRequest request, const TextOptions& options);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Waits for tokens at most `timeout`, and tells what they made certain. Throws the Error that the sequence failed
  // with.
  Piece advance(std::chrono::milliseconds timeout);

  bool done() const { return done_; }
  const char* finish_reason() const { return stopped_ ? "stop" : "length"; }  // once done
  const StopReason& stop_reason() const { return stop_reason_; }
  int32_t generated() const { return generated_; }
  // What is of the prompt, once a token is there.
  schedule::Ticket::Times times() const { return ticket_->times(); }
  // Its part of the answer is sent, for which the client let it wait so long.
  void mark_sent(std::chrono::nanoseconds blocked) { ticket_->mark_sent(blocked); }
  double mean_logprob() const { return generated_ ? logprob_sum_ / generated_ : 0; }

 private:
  void take(schedule::TokenEvent event, Piece& piece);
  void emit(std::string text, Piece& piece);
  void release(bool all, Piece& piece);
  void finish(bool stopped);
  void measure(int64_t tokens);

  Model& model_;
  const TextOptions options_;
  const std::vector<int32_t> end_ids_;
  const int32_t min_tokens_;
  const bool want_scores_;
  std::optional<text::Detokenizer> detokenizer_;
  text::StopChecker stops_;
  std::shared_ptr<schedule::Ticket> ticket_;

  int32_t generated_ = 0;
  double logprob_sum_ = 0;
  bool done_ = false, stopped_ = false;
  StopReason stop_reason_;
  std::size_t decoded_ = 0, emitted_ = 0;  // bytes of text: from the detokenizer, past the stop checker
  std::vector<TokenScore> held_;           // tokens whose text is not out yet
  schedule::Ticket::Clock::time_point last_token_{};
};

}  // namespace ark::session
