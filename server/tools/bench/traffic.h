// Sends requests at their times and collects what comes back.
#pragma once

#include <functional>
#include <vector>

#include "server/tools/bench/api_client.h"

namespace ark::bench {

struct Traffic {
  std::vector<Outcome> outcomes;  // in the order of the prompts
  double seconds = 0;             // from the first request to the end of the last answer
};

// Seconds after the start at which each request is due, ascending. Without a rate all are 0; otherwise the
// gaps are gamma-distributed with shape `burstiness`, and the last request is due at about count / rate.
std::vector<double> arrival_times(std::size_t count, double rate, double burstiness, uint64_t seed);

// One thread per request in flight. `progress` is told the number of finished requests, by any thread, one at
// a time.
Traffic run_traffic(const ServeOptions& options, const std::vector<Prompt>& prompts, const std::string& model,
                    RequestForm form, const std::function<void(std::size_t)>& progress);

}  // namespace ark::bench
