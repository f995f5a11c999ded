// One choice of a text completion, as it grows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/job.h"
#include "server/api/logprobs.h"

namespace ark::api {

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;  // as given; decoded ids where it is echoed
};

// What all choices of a request go by.
struct CompletionOptions {
  int32_t logprobs = -1;  // -1: none
  bool echo = false, return_token_ids = false;
};

class CompletionChoice {
 public:
  // The prompt outlives the choice.
  CompletionChoice(const Model& model, const CompletionOptions& options, const Prompt& prompt);

  void add(session::Piece piece);
  // Something a stream should send: text, log-probabilities, ids, or the end.
  bool has_news(const session::Generation& generation) const;
  // What came since the last time, as a member of "choices".
  Json take(std::size_t index, const session::Generation& generation);

 private:
  void add_prompt_token(std::size_t position, const float* logprob,
                        const std::vector<std::pair<int32_t, float>>& top);
  int64_t characters_before(std::size_t byte);

  const CompletionOptions options_;
  const Prompt& prompt_;
  CompletionLogprobs logprobs_;
  std::vector<int64_t> prompt_offsets_;  // characters; only for echoed log-probabilities
  int64_t prompt_characters_ = 0;
  std::string generated_;  // all of it
  std::size_t taken_ = 0;  // bytes of generated_
  std::size_t counted_bytes_ = 0;
  int64_t counted_characters_ = 0;  // in the first counted_bytes_
  std::size_t prompt_tokens_seen_ = 0;
  std::vector<int32_t> ids_;
  bool scored_ = false, first_ = true;
};

}  // namespace ark::api
