// From a model file to a StepRunner: import, recognise, compile, place, launch, warm - or, where the graph is not
// row-wise, the plain runner on the untouched graph. Shared by ark-serve, ark-run and ark-bench.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/plain/run_budget.h"
#include "engine/ragged_runner.h"
#include "server/load/device.h"
#include "server/load/stage_log.h"

namespace ark {

struct LoadOptions {
  std::filesystem::path model;  // an ONNX file, or a folder that holds one
  int32_t tp = 0;               // ranks; 0: one for each node of memory on CPUs, else 1
  bool processes = false;       // each rank but 0 a process of its own, where rank 0 runs: CPU, or a GPU each
  std::filesystem::path cluster_key_file;  // of groups that a launcher has started over several machines
  int32_t threads = 0;                     // of all ranks together; 0: one per core
  bool yields_cores = true;                // as of ExecutorOptions
  int32_t max_length = 0;                  // tokens of one sequence; 0: what model and configuration allow
  int32_t config_length = 0;               // what the files beside the model say, 0 = nothing
  int32_t max_sequences = 64;
  int32_t max_batched_tokens = 0;  // of one step; 0: 512
  // Bytes, all ranks; 0: what all sequences can need, at most half of the memory that weights and activations leave,
  // or what is left of the ranks' GPUs.
  int64_t kv_memory = 0;
  DeviceChoice device;
  RunLimits run;               // of a graph that is served plain
  bool plain = false;          // the untouched graph even if it is recognised (the oracle)
  bool lockstep = false;       // the oracle executor instead of the loop
  std::filesystem::path plan;  // empty, or programs that are forced (engine/plan_file.h)
  int32_t pages = 0;           // of keys and values; 0: as kv_memory says
  int32_t machine_ranks = 0;   // of CompileOptions; 0: as the ranks are placed
  bool is_alone = false;       // of no group that a launcher has started
  // For packed weights and what else is made of a model, and for compiled kernels. Empty: where DiskCache says.
  std::filesystem::path cache_dir;
  int64_t cache_size = -1;      // bytes; -1: compiled kernels alone, in the usual folder
  bool no_cache = false;        // as if there were none
  bool finishes_cache = false;  // what is kept is kept before the runner ends, however long that takes
  // By a process that starts this one again: LoadedRunner::identity is wanted, and a silent rank soon taken for dead.
  bool is_supervised = false;
  bool wants_identity = false;  // LoadedRunner::identity, also without
};

struct LoadedRunner {
  std::shared_ptr<StepRunner> runner;
  RunnerMemory memory;  // zeros for the plain runner
  bool is_ragged = false;
  std::string identity;  // of what computes and of samples of the weights: equal for equal models; if wanted
  int32_t machine_ranks = 1;  // of CompileOptions, as it was settled
};

// Throws Error: kNotFound, kBadModel, kUnsupported (no decoder, or beyond the limits), kUsage (options that
// do not fit the model), kExhausted (memory), kUnavailable (a GPU was asked for and there is none).
LoadedRunner load_runner(const LoadOptions& options, StageLog& log);

}  // namespace ark
