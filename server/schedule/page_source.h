// Pages of keys and values that other servers have: what the scheduler asks for those of a prompt that are not in its
// own memory. How they come (server/peers) is no matter of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"

namespace ark::schedule {

struct PageQuestion {
  std::vector<int32_t> scope;           // whose they are (prefix.h)
  std::vector<int32_t> tokens;          // whole pages, from the sequence's beginning
  int32_t first = 0;                    // the page that is wanted first; `tokens` ends with the last
  std::chrono::nanoseconds patience{};  // after which nothing more is waited for
};

// The answer to one question, as it comes. Destroyed: the rest is not wanted. Scheduler thread only.
class PageFetch {
 public:
  virtual ~PageFetch() = default;
  // The next page's bytes (StepRunner::page_bytes()), in order, if they have come.
  virtual std::optional<std::string> next() = 0;
  // Nothing more will come.
  virtual bool is_over() = 0;
};

// Never throws, never waits. Whatever is wrong with a neighbour is an answer without pages.
class PageSource {
 public:
  virtual ~PageSource() = default;
  // Somebody is there to ask. Any thread.
  virtual bool is_there() const = 0;
  // They compute what they have not (disaggregated prefill), which then takes as long as it takes.
  virtual bool computes() const = 0;
  // Seconds that so many pages would take, as the last ones did; 0: not known.
  virtual double seconds(int32_t pages) const = 0;
  virtual std::unique_ptr<PageFetch> ask(PageQuestion question) = 0;
  // Called from another thread whenever something has come or is over. Set before the first question; no longer called
  // once this has been called again.
  virtual void on_arrival(std::function<void()> call) = 0;
};

// What a server and its neighbours have exchanged, for /metrics. Any thread.
struct PageTraffic {
  const uint64_t server = random_word();              // which one it is: lists of neighbours may name oneself
  std::atomic<int64_t> asked{0};                      // questions to a neighbour: a round trip each
  std::atomic<int64_t> fetched{0}, fetched_bytes{0};  // pages that came
  std::atomic<int64_t> failed{0};                     // questions without a right answer in time
  std::atomic<int64_t> answered{0};                   // questions of neighbours
  std::atomic<int64_t> refused{0};                    // neighbours that were sent away
  std::atomic<int64_t> served{0}, served_bytes{0};    // pages that went
  std::atomic<int64_t> changed{0};                    // pages that were given away while they were read
  std::atomic<int64_t> computed{0};                   // prompts for neighbours
};

}  // namespace ark::schedule
