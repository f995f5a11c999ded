#include "server/load/draft.h"

#include <cstdlib>

#include "base/error.h"
#include "server/load/model_file.h"

namespace ark {
namespace {

// Models of one family differ in how far their vocabularies are padded.
constexpr int32_t kMostPadding = 128;

void check_fits(const RunnerLimits& own, const RunnerLimits& served) {
  if (std::abs(own.vocabulary - served.vocabulary) > kMostPadding)
    throw Error(Code::kUsage, "its vocabulary of " + std::to_string(own.vocabulary) +
                                  " tokens is not that of the model, of " +
                                  std::to_string(served.vocabulary));
  if (own.shares_pages == 0)
    throw Error(Code::kUnsupported,
                "what it caches does not lie in pages alone, so wrong guesses cannot be taken back");
  if (served.shares_pages == 0)
    throw Error(Code::kUnsupported,
                "what the served model caches does not lie in pages alone, so guesses cannot be taken back");
}

}  // namespace

std::shared_ptr<StepRunner> load_draft_runner(const std::filesystem::path& model, WeightPolicy weights,
                                              const LoadOptions& served, const RunnerLimits& limits,
                                              StageLog& log) {
  log.enter("draft");
  try {
    const ModelFile file = find_model(model, "");
    LoadOptions options;
    options.model = file.onnx;
    options.is_alone = true;
    options.threads = served.threads;
    options.yields_cores = served.yields_cores;
    options.max_sequences = limits.max_slots;
    options.max_batched_tokens = served.max_batched_tokens;
    options.kv_memory = served.kv_memory;
    options.cache_dir = served.cache_dir;
    options.cache_size = served.cache_size;
    options.no_cache = served.no_cache;
    options.finishes_cache = served.finishes_cache;
    options.device.device = Device::kCpu;
    options.device.weights = weights;
    StageLog quiet([](const std::string&) {});
    const LoadedRunner loaded = load_runner(options, quiet);
    check_fits(loaded.runner->limits(), limits);
    log.done("draft", file.name + " guesses: " + std::to_string((loaded.memory.weights + (1 << 19)) >> 20) +
                          " MiB of weights, sequences up to " +
                          std::to_string(loaded.runner->limits().max_length));
    return loaded.runner;
  } catch (const Error& error) {
    throw Error(error.code(), "--draft-model: " + std::string(error.what()));
  }
}

}  // namespace ark
