// What a server and its model's process say to each other, as bytes. Both run the same executable: values lie as
// they do in memory. What does not fit throws Error(kUnavailable).
#pragma once

#include <string>
#include <string_view>

#include "engine/run/runner.h"

namespace ark::supervise {

std::string to_blob(const StepDescriptor& step);
StepDescriptor step_of(std::string_view blob);

std::string to_blob(const StepResult& result);  // without logits, which only tools ask for
StepResult result_of(std::string_view blob);

// To the process, first of all: what it cannot find out, and what the one before it had settled.
struct ModelTerms {
  int32_t config_length = 0;  // LoadOptions::config_length
  int32_t pages = 0;          // RunnerLimits::pages, 0: the process is the first and settles it
  int32_t machine_ranks = 0;  // CompileOptions::machine_ranks, likewise
};
std::string to_blob(const ModelTerms& terms);
ModelTerms terms_of(std::string_view blob);

// From the process, once it has loaded.
struct ModelFacts {
  RunnerLimits limits;
  std::string identity;  // of program and weights: equal means that equal steps have equal results
  int32_t machine_ranks = 1;
};
std::string to_blob(const ModelFacts& facts);
ModelFacts facts_of(std::string_view blob);

}  // namespace ark::supervise
