// The first half of a load: from a file to programs, each stage with its line.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ir/decoder.h"
#include "importer/onnx.h"
#include "server/load/ranks.h"
#include "server/load/stage_log.h"
#include "server/load/terms.h"

namespace ark {

// What all stages up to packing have made; it can be kept on disk (model_cache.h).
struct CompiledModel {
  DecoderFacts facts;
  std::string recognised;  // for people
  Compiled compiled;
  Fingerprint fingerprint;
  std::vector<onnx::SourceFile> files;  // that it was read from
};

// The graph as it is, one sequence at a time.
struct ServedPlain {
  std::string reason;
  std::optional<DecoderSignature> signature;  // nullopt: it is no decoder at all
  bool parts_prompts = true;                  // RunnerLimits::parts_prompts
};

// `files`: gets those that were read. Throws as import_model.
Graph import_logged(const LoadOptions& options, std::vector<onnx::SourceFile>& files, StageLog& log);
// Throws Error(kUnsupported) for what fills blanks.
std::variant<DecoderModel, ServedPlain> recognise_logged(const Graph& graph, const LoadOptions& options,
                                                         StageLog& log);
CompiledModel compile_logged(const DecoderModel& model, const LaunchTerms& terms,
                             const std::vector<onnx::SourceFile>& files, StageLog& log);
// Of a model that another start has compiled.
void log_kept(const CompiledModel& model, StageLog& log);

}  // namespace ark
