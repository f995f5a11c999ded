// One streaming request to an OpenAI-compatible server, with the times of what comes back.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/tools/bench/options.h"

namespace ark::bench {

using Clock = std::chrono::steady_clock;

// A prompt as ids, as text, or both; which is sent depends on what the server takes.
struct Prompt {
  std::vector<int32_t> ids;
  std::string text;
  int64_t input_tokens = 0;   // as far as known here; the server's own count overrides it
  int64_t output_tokens = 0;  // that are asked for
};

// What the server understands, found by trying.
struct RequestForm {
  bool token_ids = false;      // prompts as arrays of ids
  bool include_usage = false;  // stream_options
};

struct Outcome {
  bool ok = false;
  std::string error;  // why not
  int status = 0;     // of HTTP; 0: no answer came
  Clock::time_point start;
  double first = 0;               // seconds from start to the first token
  double latency = 0;             // to the last token
  std::vector<double> intervals;  // seconds between events that carry tokens
  std::string text;
  int64_t input_tokens = 0;
  std::optional<int64_t> output_tokens;  // as the server counts
};

// Holds one connection, which it keeps between requests. One thread at a time.
class ApiClient {
 public:
  explicit ApiClient(const ServeOptions& options);
  ~ApiClient();
  ApiClient(ApiClient&&) noexcept;

  Outcome generate(const Prompt& prompt, const std::string& model, RequestForm form);
  // The first name in /v1/models. Throws Error(kUnavailable).
  std::string first_model();
  // What the server says at `path`; null where it has no such page, or does not tell.
  Json page(const std::string& path);

 private:
  struct Connection;
  const ServeOptions& options_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace ark::bench
