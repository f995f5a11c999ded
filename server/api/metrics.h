// Prometheus' text format: series, and what the HTTP server counts.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "server/session/statistics.h"

namespace ark::api {

// What the HTTP server reports.
class ServerMetrics {
 public:
  // `route`: the pattern that matched, "" for none: all such requests are one series, route="none".
  void count(const std::string& route, int status);
  void print(std::string& out) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;
};

// `name="value"`, with backslash, quote and newline escaped.
std::string label(std::string_view name, std::string_view value);
// "# HELP" and "# TYPE".
void describe(std::string& out, std::string_view name, std::string_view type, std::string_view help);
// One line; `labels` as `model="x"`, "" for none.
void series(std::string& out, std::string_view name, std::string_view labels, double value);
void series(std::string& out, std::string_view name, std::string_view labels,
            const session::Histogram& histogram);

}  // namespace ark::api
