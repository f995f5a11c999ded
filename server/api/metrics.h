// Counters and histograms in Prometheus' text format. Times are in seconds.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>

namespace ark::api {

// Lock-free; a scrape may see an observation in a bucket before it is in the sum.
class Histogram {
 public:
  // Upper bounds, from a millisecond up.
  static constexpr std::array<double, 18> kBounds = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3,
                                                     0.5,   0.75,  1,     2,    5,    10,   30,  60,  120};
  void observe(double seconds, int64_t times = 1);
  // Lines of one series; `labels` as `model="x"`.
  void print(std::string& out, std::string_view name, const std::string& labels) const;

 private:
  std::array<std::atomic<int64_t>, kBounds.size() + 1> buckets_{};
  std::atomic<double> sum_{0};
};

// What one model's requests report.
struct ModelMetrics {
  Histogram first_token, inter_token, end_to_end, queue;
  std::atomic<int64_t> stop{0}, length{0}, cancelled{0}, failed{0};  // sequences by how they ended
};

// What the HTTP server reports.
class ServerMetrics {
 public:
  void count(const std::string& route, int status);
  void print(std::string& out) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, int>, int64_t> requests_;
};

// "name" with backslash, quote and newline escaped for a label.
std::string label(std::string_view name, std::string_view value);
// "# HELP" and "# TYPE".
void describe(std::string& out, std::string_view name, std::string_view type, std::string_view help);

}  // namespace ark::api
