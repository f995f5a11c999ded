#include "server/api/logprobs.h"

#include <cstdio>

#include "server/text/unicode.h"

namespace ark::api {
namespace {

constexpr double kLowest = -9999;

std::string bytes_of_token(const Model& model, int32_t id) {
  const text::Tokenizer* tokenizer = model.tokenizer();
  return tokenizer ? tokenizer->token_bytes(id) : std::string();
}

// The token as text: its bytes if they are UTF-8, else "bytes:\xe2\x80" as OpenAI writes them.
std::string token_text(const Model& model, int32_t id) {
  const std::string bytes = bytes_of_token(model, id);
  if (!model.tokenizer()) return "token_id:" + std::to_string(id);
  if (text::is_valid_utf8(bytes)) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes) {
    char code[8];
    std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(c));
    out += code;
  }
  return out;
}

// As JSON has it: minus infinity is -9999.
double finite(float logprob) { return logprob >= kLowest ? logprob : kLowest; }

}  // namespace

void CompletionLogprobs::add(int32_t id, const float* logprob,
                             const std::vector<std::pair<int32_t, float>>& top, int64_t offset) {
  const std::string token = token_text(model_, id);
  tokens_.push_back(token);
  logprobs_.push_back(logprob ? Json(finite(*logprob)) : Json());
  offsets_.push_back(offset);
  Json best;
  if (logprob) {
    best = Json::object();
    for (const auto& [other, value] : top) {
      if (static_cast<int32_t>(best.size()) >= top_) break;
      best.emplace(token_text(model_, other), finite(value));
    }
    best.emplace(token, finite(*logprob));  // the chosen one is always there
  }
  tops_.push_back(std::move(best));
}

Json CompletionLogprobs::take() {
  Json all = {{"tokens", std::move(tokens_)},
              {"token_logprobs", std::move(logprobs_)},
              {"top_logprobs", std::move(tops_)},
              {"text_offset", std::move(offsets_)}};
  tokens_ = logprobs_ = tops_ = offsets_ = Json::array();
  return all;
}

Json chat_logprobs(const Model& model, const std::vector<session::TokenScore>& scores, int32_t top) {
  const auto entry = [&](int32_t id, float logprob) {
    Json bytes = Json::array();
    for (const char c : bytes_of_token(model, id)) bytes.push_back(static_cast<unsigned char>(c));
    return Json{{"token", token_text(model, id)}, {"logprob", finite(logprob)}, {"bytes", std::move(bytes)}};
  };
  Json all = Json::array();
  for (const session::TokenScore& score : scores) {
    Json one = entry(score.id, score.logprob);
    Json best = Json::array();
    for (const auto& [id, logprob] : score.top) {
      if (static_cast<int32_t>(best.size()) >= top) break;
      best.push_back(entry(id, logprob));
    }
    one["top_logprobs"] = std::move(best);
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace ark::api
