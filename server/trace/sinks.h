// Where the records of finished requests go, as the server's options say.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "server/trace/outbox.h"

namespace ark::trace {

struct SinkOptions {
  std::filesystem::path folder;            // --trace-dir; empty: none
  std::chrono::nanoseconds slower_than{};  // of requests that get a file there
  std::string collector;                   // --otlp-endpoint; empty: none
};

// Any thread.
class Sinks {
 public:
  // Throws Error(kUsage or kOs) for what cannot be used.
  explicit Sinks(const SinkOptions& options);
  void put(const RecordPtr& record) const;
  int64_t dropped() const;  // records that did not get where they should

 private:
  std::vector<std::unique_ptr<Outbox>> outboxes_;
};

}  // namespace ark::trace
