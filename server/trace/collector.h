// --otlp-endpoint: spans to an OpenTelemetry collector, by OTLP over HTTP in JSON.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "server/trace/post.h"
#include "server/trace/slowest.h"

namespace ark::trace {

// One thread.
class Collector {
 public:
  // `url`: of the collector, without /v1/traces. Throws Error(kUsage).
  explicit Collector(const std::string& url);

  // How many were lost: the collector did not take them, though it was asked some times. Records of requests whose
  // caller does not want spans are none.
  std::size_t send(const std::vector<RecordPtr>& records, const std::stop_token& stop);

 private:
  const Url url_;
  bool has_warned_ = false;
};

}  // namespace ark::trace
