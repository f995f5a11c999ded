// One choice of a text completion, as it grows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/format.h"
#include "server/api/generation.h"

namespace ark::api {

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;  // as given; decoded ids where it is echoed
};

// One request. Sequence i belongs to prompt i / best_of.
struct CompletionJob {
  CompletionJob(Model& m, Parameters p) : model(m), parameters(std::move(p)), batch(m) {}
  int64_t prompt_tokens() const {
    int64_t sum = 0;
    for (const Prompt& prompt : prompts) sum += static_cast<int64_t>(prompt.ids.size());
    return sum;
  }

  Model& model;
  Parameters parameters;
  std::string id;
  int64_t created = 0;
  std::vector<Prompt> prompts;
  int32_t best_of = 1, logprobs = -1;
  bool echo = false;
  Batch batch;
};

class CompletionChoice {
 public:
  // `job` outlives the choice.
  CompletionChoice(CompletionJob& job, std::size_t sequence);

  void add(Piece piece);
  // Something a stream should send: text, log-probabilities, ids, or the end.
  bool has_news() const;
  // What came since the last time, as a member of "choices".
  Json take(std::size_t index);

 private:
  void add_prompt_token(std::size_t position, const float* logprob,
                        const std::vector<std::pair<int32_t, float>>& top);
  int64_t characters_before(std::size_t byte);
  const Prompt& prompt() const { return job_.prompts[sequence_ / static_cast<std::size_t>(job_.best_of)]; }
  const Generation& generation() const { return job_.batch.at(sequence_); }

  CompletionJob& job_;
  const std::size_t sequence_;
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
