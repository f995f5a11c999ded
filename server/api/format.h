// The JSON that completions and chat share: log-probabilities, usage, ids, server-sent events.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/generation.h"

namespace ark::api {

// The token as text: its bytes if they are UTF-8, else "bytes:\xe2\x80" as OpenAI writes them.
std::string token_text(const Model& model, int32_t id);
// Log-probabilities as JSON has them: minus infinity is -9999.
double finite(float logprob);

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
Json chat_logprobs(const Model& model, const std::vector<TokenScore>& scores, int32_t top);

Json usage(int64_t prompt, int64_t generated);
// "data: {...}\n\n"
std::string event(const Json& json);
inline constexpr std::string_view kDone = "data: [DONE]\n\n";

// Fills the access log's fields for a request.
void log_usage(LogFields& log, const Model& model, int64_t prompt, int64_t generated);

// Runs `body`, which writes events; a failure becomes an event with the error envelope. Ends with [DONE].
void stream_events(const http::Writer& write,
                   const std::function<void(const std::function<void(const Json&)>&)>& body);

int64_t unix_seconds();

}  // namespace ark::api
