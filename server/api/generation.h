// One sequence of a request: its ticket, its detokenizer, its stop strings.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/parameters.h"
#include "server/text/detokenizer.h"
#include "server/text/stop_checker.h"

namespace ark::api {

// A token with its log-probability and its place in the text.
struct TokenScore {
  int32_t id = -1;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;
  std::size_t begin = 0,
              end = 0;  // bytes of the sequence's text; equal where the token adds no whole character
};

// What became certain since the last time.
struct Piece {
  std::string text;
  std::vector<TokenScore>
      scores;                // of the tokens whose text is out; empty unless log-probabilities are asked for
  std::vector<int32_t> ids;  // all tokens that were sampled, also those that ended the sequence
  std::vector<schedule::TokenEvent> prompt;  // log-probabilities of the prompt's tokens, from the second on
};

// Owned by the connection's thread. Destruction cancels what still runs.
class Generation {
 public:
  // Submits; see Scheduler::submit for what it throws.
  Generation(Model& model, schedule::GenerateRequest request, const TextOptions& options);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Waits for tokens at most `timeout`, and tells what they made certain. Throws HttpError 503 if the
  // sequence failed.
  Piece advance(std::chrono::milliseconds timeout);

  bool done() const { return done_; }
  const char* finish_reason() const { return stopped_ ? "stop" : "length"; }  // once done
  // What ended it: a stop string or one of stop_token_ids; null for the end of text and for the length.
  const Json& stop_reason() const { return stop_reason_; }
  int32_t prompt_tokens() const { return prompt_tokens_; }
  int32_t generated() const { return generated_; }
  double mean_logprob() const { return generated_ ? logprob_sum_ / generated_ : 0; }

 private:
  void take(schedule::TokenEvent event, Piece& piece);
  void emit(std::string text, Piece& piece);
  void release(bool all, Piece& piece);
  void finish(bool stopped);
  void measure(std::size_t tokens);

  Model& model_;
  const TextOptions options_;
  const std::vector<int32_t> end_ids_;
  const int32_t prompt_tokens_, min_tokens_;
  const bool want_scores_;
  std::optional<text::Detokenizer> detokenizer_;
  text::StopChecker stops_;
  std::shared_ptr<schedule::Ticket> ticket_;

  int32_t generated_ = 0;
  double logprob_sum_ = 0;
  bool done_ = false, stopped_ = false;
  Json stop_reason_;
  std::size_t decoded_ = 0, emitted_ = 0;  // bytes of text: from the detokenizer, past the stop checker
  std::vector<TokenScore> held_;           // tokens whose text is not out yet
  schedule::Ticket::Clock::time_point last_token_{};
};

// All sequences of one request.
class Batch {
 public:
  explicit Batch(Model& model) : model_(model) {}
  void submit(schedule::GenerateRequest request, const TextOptions& options);

  // Calls `take(index, piece)` for what comes, until all are done. Throws HttpError 499 when the client is
  // gone.
  void run(const std::function<bool()>& client_gone, const std::function<void(std::size_t, Piece)>& take);

  Generation& at(std::size_t index) { return *sequences_[index]; }
  std::size_t size() const { return sequences_.size(); }
  int64_t generated() const;

 private:
  Model& model_;
  std::vector<std::unique_ptr<Generation>> sequences_;
};

}  // namespace ark::api
