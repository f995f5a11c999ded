// What one model's sequences report: how they ended and how long they took. Times are in seconds.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ark::session {

// Lock-free; a reader may see an observation in a bucket before it is in the sum.
class Histogram {
 public:
  // Upper bounds, from a millisecond up.
  static constexpr std::array<double, 18> kBounds = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3,
                                                     0.5,   0.75,  1,     2,    5,    10,   30,  60,  120};

  void observe(double seconds, int64_t times = 1) {
    std::size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
    buckets_[bucket].fetch_add(times, std::memory_order_relaxed);
    sum_.fetch_add(seconds * static_cast<double>(times), std::memory_order_relaxed);
  }
  // Observations up to kBounds[bucket] and beyond the bound before; one bucket more holds the rest.
  int64_t bucket(std::size_t bucket) const { return buckets_[bucket].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<int64_t>, kBounds.size() + 1> buckets_{};
  std::atomic<double> sum_{0};
};

struct Statistics {
  Histogram first_token, inter_token, end_to_end, queue;
  std::atomic<int64_t> stop{0}, length{0}, cancelled{0}, failed{0};  // sequences by how they ended
};

}  // namespace ark::session
