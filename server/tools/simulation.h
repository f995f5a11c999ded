// The scheduler's own policies in virtual time: what a trace of requests would come to with steps that take as long as
// a table says. Nothing is computed, nothing is sent.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "server/json_fwd.h"
#include "server/schedule/state.h"
#include "server/tools/step_times.h"

namespace ark {

struct TracedRequest {
  double at = 0;                   // seconds since the trace's begin; ascending
  int32_t prompt = 0, output = 0;  // tokens
  int32_t group = -1,
          shared = 0;   // the first `shared` tokens of the prompt are those of all others of its group
  uint32_t client = 0;  // whose it is
};

// A JSON object a line: {"at", "prompt_tokens", "output_tokens", "group", "shared_tokens", "client"}, the last three
// may be left out. Throws Error(kUsage) that names the line.
std::vector<TracedRequest> read_trace(const std::string& text, const std::string& file);

// Of values from a microsecond to a day, within half a percent.
class Distribution {
 public:
  void add(double seconds);
  int64_t count() const { return count_; }
  double mean() const { return count_ ? sum_ / static_cast<double>(count_) : 0; }
  double percentile(double p) const;  // 0 .. 100; of nothing, 0

 private:
  std::array<int64_t, 5200> buckets_{};
  int64_t count_ = 0;
  double sum_ = 0;
};

// Seconds that a request's first token and its longest pause between two tokens may take; 0: any.
struct Goals {
  double first = 0, next = 0;
};

struct Simulated {
  double seconds = 0;  // of virtual time, from the first arrival to the last token
  Distribution first_token, between_tokens, whole;
  struct Times {
    double first = -1, whole = -1;  // seconds; below 0: it was refused
  };
  std::vector<Times> requests;  // as in the trace
  schedule::SchedulerStats stats;
  Goals goals;
  int64_t good = 0, late = 0, slow = 0;  // requests that reach both goals, miss the first, the second
  int64_t refused = 0;                   // requests that can never run, or find the queue full
  schedule::Shares shares;               // what all requests' time went to
};

// Throws Error(kUsage) where the options do not fit the model.
Simulated simulate(const std::vector<TracedRequest>& trace, const MeasuredModel& model,
                   const schedule::SchedulerOptions& options, const Goals& goals = {});

// With the keys of `ark-bench serve` where it has them, times in milliseconds; request_goodput where there are goals.
Json to_json(const Simulated& result);

}  // namespace ark
