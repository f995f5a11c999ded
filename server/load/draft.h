// The smaller model that guesses for a served one (--draft-model).
#pragma once

#include <filesystem>
#include <memory>

#include "engine/run/runner.h"
#include "server/load/load_runner.h"
#include "server/load/stage_log.h"

namespace ark {

// On the CPU, as one rank, in this process. Throws Error that begins with --draft-model, as find_model and load_runner
// do; kUsage where its tokens cannot mean what those of a model with `limits` mean, kUnsupported where guesses cannot
// be taken back, because either model's keys and values do not lie in pages alone.
std::shared_ptr<StepRunner> load_draft_runner(const std::filesystem::path& model, WeightPolicy weights,
                                              const LoadOptions& served, const RunnerLimits& limits,
                                              StageLog& log);

}  // namespace ark
