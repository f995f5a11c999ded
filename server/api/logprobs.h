// Log-probabilities as OpenAI's answers have them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "server/json.h"
#include "server/session/generation.h"

namespace ark::api {

using session::Model;

// OpenAI's legacy lists. Text offsets count characters.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const Model& model, int32_t top) : model_(model), top_(top) {}
  void add(int32_t id, const float* logprob, const std::vector<std::pair<int32_t, float>>& top,
           int64_t offset);
  Json take();  // {"tokens", "token_logprobs", "top_logprobs", "text_offset"} since the last time

 private:
  const Model& model_;
  const int32_t top_;
  Json tokens_ = Json::array(), logprobs_ = Json::array(), tops_ = Json::array(), offsets_ = Json::array();
};

// [{"token", "logprob", "bytes", "top_logprobs"}, ...]
Json chat_logprobs(const Model& model, const std::vector<session::TokenScore>& scores, int32_t top);

}  // namespace ark::api
