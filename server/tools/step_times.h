// How long a step takes, from a table of measured ones.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/run/runner.h"
#include "server/json_fwd.h"

namespace ark {

// Steps of one kind: `tokens` of a prompt at once, or of as many sequences that decode; what each had before.
struct TimedStep {
  int32_t tokens = 0, before = 0;
  double seconds = 0;
};

// A step takes what its tokens take, whichever they are; what rows of streams take beside that; and what attention
// takes, by tokens that are looked at. Between measured numbers of tokens it is straight, beyond them it goes on so.
class StepTimes {
 public:
  // Each list has one with before = 0 or the least `before`, for each number of tokens. Throws Error(kUsage).
  StepTimes(const std::vector<TimedStep>& decodes, const std::vector<TimedStep>& prompts);

  double seconds(const StepDescriptor& step) const;

 private:
  // Seconds by tokens, without attention, ascending; and of a token that another looks at.
  struct Curve {
    Curve(const std::vector<TimedStep>& steps, bool causal);
    double at(double tokens) const;
    std::vector<std::pair<double, double>> points;
    double look = 0;
  };
  Curve decodes_, prompts_;
};

// {"limits": {"max_tokens", "max_sequences", "max_length", "page_size", "pages"}, "decode": [[sequences, before, ms]],
// "prompt": [[tokens, before, ms]]}.
struct MeasuredModel {
  RunnerLimits limits;
  std::vector<TimedStep> decodes, prompts;
};
Json to_json(const MeasuredModel& model);
// Throws Error(kUsage) that names `file`.
MeasuredModel measured_model(const Json& json, const std::string& file);
// Steps of a real runner, two in flight as a server has them; takes some seconds.
MeasuredModel measure_steps(StepRunner& runner);

}  // namespace ark
