// Who may use the server, and how much.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace ark::http {

struct KeyLimits {                   // 0: none
  int64_t requests = 0, tokens = 0;  // a minute
  int64_t concurrency = 0;           // requests at once
};

// What the holder of one key has used of its limits.
class KeyUsage {
 public:
  using Clock = std::chrono::steady_clock;
  const uint32_t id = ++last_id_;  // of the key, however often its file is read

  // Takes a place for a request, or throws HttpError 429 that names `key`. Full limits may be used at once, and come
  // back evenly over a minute.
  void begin(const std::string& key, const KeyLimits& limits, Clock::time_point now = Clock::now());
  void end(int64_t tokens);  // gives the place back

 private:
  static inline std::atomic<uint32_t> last_id_ = 0;
  std::mutex mutex_;                  // guards what follows
  double requests_ = 0, tokens_ = 0;  // used, and not come back yet
  int64_t running_ = 0;
  Clock::time_point last_{};
};

struct ApiKey {
  std::string name, secret;
  std::string digest;  // SHA-256 of the secret: the same on every server
  KeyLimits limits;
  std::shared_ptr<KeyUsage> usage = std::make_shared<KeyUsage>();
};

class ApiKeys {
 public:
  ApiKeys() = default;  // everybody
  // One key a line: KEY, NAME:KEY or NAME KEY, then limits as rpm=60 tpm=10000 concurrency=4; "#" begins a comment.
  // Throws Error(kNotFound or kUsage). Warns in the log where others may read the file.
  static ApiKeys load(const std::filesystem::path& file);

  bool empty() const { return keys_.empty(); }
  // `authorization`: the header's value, "Bearer KEY". Null: none of the keys. The time taken does not tell how much
  // of a key was right.
  const ApiKey* find(std::string_view authorization) const;
  // What keys have used stays used when their file is read again.
  void take_usage_from(const ApiKeys& before);

 private:
  std::vector<ApiKey> keys_;
};

}  // namespace ark::http
