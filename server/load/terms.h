// What rank 0 settles, and what all ranks must do alike: compile the same programs and reserve the same memory.
// Travels to rank processes as one blob through the Bootstrap.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/compile.h"
#include "engine/ragged_runner.h"

namespace ark {

struct LoadOptions;

struct LaunchTerms {
  int32_t ranks = 1;
  int32_t threads = 1;       // of all ranks together
  int32_t table_length = 0;  // what recognise_decoder is told
  RunnerLimits limits;       // pages and max_length are final once settle_pages has been called
  bool lockstep = false;
  bool one_step_a_launch = false;
  bool on_gpu = false;  // all ranks, or none
  bool as_graph = false;
  cuda::Numerics numerics = cuda::Numerics::kExact;
  WeightPolicy weights = WeightPolicy::kExact;
  Activations activations = Activations::kAuto;
  Bf16Unit bf16 = Bf16Unit::kNone;    // as of CompileOptions
  bool keeps_codes_of_tables = true;  // as of CompileOptions
  DType kv_dtype = DType::kF32;       // as of CompileOptions
  int32_t trace_events = 0;
  int32_t processors = 0, groups = 0;  // as of cuda::DeviceOptions
  int32_t machine_ranks = 1;           // as of CompileOptions
  bool yields_cores = true;            // as of ExecutorOptions
  std::string plan;                    // text of programs that are forced, or empty
};

// What terms need to know of a model.
struct DecoderFacts {
  int64_t max_positions = 0;  // of its tables; 0: it has none
  int32_t vocabulary = 0;
  int32_t embedded = 0;  // token ids that its embedding has rows for
};
DecoderFacts facts_of(const DecoderModel& model);

// What recognise_decoder is told of the longest sequence; 0: the file says.
int32_t table_length(const LoadOptions& options);

// The longest sequence: what is asked for, else what model and configuration allow. `positions`: of the model's
// tables, 0 if it has none. Throws Error(kUsage) naming both numbers if more is asked for.
int32_t sequence_length(const LoadOptions& options, int64_t positions);

// All but limits.pages and on_gpu; what is not asked for is chosen for a GPU or for the CPU. Throws Error(kUsage),
// kNotFound for a plan that is not there.
LaunchTerms terms_for(const DecoderFacts& model, const LoadOptions& options, bool for_gpu);

CompileOptions compile_options(const LaunchTerms& terms);
// The same on every rank.
Compiled compile_model(const DecoderModel& model, const LaunchTerms& terms);
RaggedOptions ragged_options(const LaunchTerms& terms, std::shared_ptr<cuda::Gpu> gpu);

std::string to_blob(const LaunchTerms& terms);
// Throws Error(kUnavailable) if it is none: the ranks run different builds.
LaunchTerms terms_of(std::string_view blob);

}  // namespace ark
