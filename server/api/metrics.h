// What the HTTP server counts, in Prometheus' text format.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace ark::api {

class ServerMetrics {
 public:
  // `route`: the pattern that matched, "" for none: all such requests are one series, route="none".
  void count(const std::string& route, int status);
  void print(std::string& out) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;
};

}  // namespace ark::api
