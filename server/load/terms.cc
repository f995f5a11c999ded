#include "server/load/terms.h"

#include <algorithm>
#include <fstream>

#include "base/cores.h"
#include "base/error.h"
#include "engine/plan_file.h"
#include "server/load/device.h"
#include "server/load/load_runner.h"

namespace ark {
namespace {

constexpr int32_t kPageSize = 16;
constexpr int32_t kMaxTokens = 512;        // of one step, unless told otherwise
constexpr int32_t kLongest = 1 << 20;      // of any sequence
constexpr int32_t kMostUnasked = 1 << 17;  // without --max-model-len, as tables and masks are made for it
constexpr int32_t kUnknownLength = 2048;   // where neither the model nor its configuration says

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw Error(Code::kNotFound, "cannot open " + escaped(file.string()));
  return {std::istreambuf_iterator<char>(in), {}};
}

// The rows of the shortest table that token ids index.
int32_t embedded_tokens(const DecoderModel& model) {
  int64_t least = model.vocabulary;
  for (const Node& node : model.tokens.nodes) {
    if (node.removed || node.op != Op::kGather || node.inputs[1] != model.tokens.inputs[0]) continue;
    const auto& shape = model.tokens.value(node.inputs[0]).shape;
    if (shape && !shape->empty()) least = std::min(least, shape->front().constant().value_or(least));
  }
  return static_cast<int32_t>(least);
}

// The number of ranks, which a forced plan settles.
int32_t ranks_of(const LoadOptions& options, const std::string& plan) {
  if (plan.empty()) return std::max(1, options.tp);
  const int32_t ranks = ranks_of_plan(plan);
  if (options.tp > 0 && options.tp != ranks)
    throw Error(Code::kUsage, "the plan is for " + std::to_string(ranks) + " ranks, --tp asks for " +
                                  std::to_string(options.tp));
  return ranks;
}

}  // namespace

int32_t table_length(const LoadOptions& options) {
  return options.max_length > 0 ? options.max_length : std::min(options.config_length, kMostUnasked);
}

int32_t sequence_length(const LoadOptions& options, int64_t positions) {
  const bool by_configuration =
      options.config_length > 0 && (positions <= 0 || options.config_length < positions);
  const int64_t known = by_configuration ? options.config_length : positions;
  const int64_t most = known > 0 ? std::min<int64_t>(known, kLongest) : kLongest;
  if (options.max_length > most)
    throw Error(Code::kUsage, "--max-model-len " + std::to_string(options.max_length) +
                                  " exceeds the model's " + std::to_string(most) + " positions" +
                                  (by_configuration ? ", which the configuration beside it gives" : ""));
  if (options.max_length > 0) return options.max_length;
  return known > 0 ? static_cast<int32_t>(std::min<int64_t>(most, kMostUnasked)) : kUnknownLength;
}

DecoderFacts facts_of(const DecoderModel& model) {
  return {model.max_positions, static_cast<int32_t>(model.vocabulary), embedded_tokens(model)};
}

LaunchTerms terms_for(const DecoderFacts& model, const LoadOptions& options, bool for_gpu) {
  LaunchTerms terms;
  if (!options.plan.empty()) terms.plan = read_text(options.plan);
  terms.ranks = ranks_of(options, terms.plan);
  terms.threads = options.threads > 0 ? options.threads : Cores().threads();
  terms.table_length = table_length(options);
  RunnerLimits& limits = terms.limits;
  limits.max_tokens = options.max_batched_tokens > 0 ? options.max_batched_tokens : kMaxTokens;
  // A decode step takes one token of each.
  limits.max_tokens = std::max(limits.max_tokens, options.max_sequences);
  limits.max_slots = options.max_sequences;
  limits.max_rows = std::max(32, options.max_sequences);
  limits.max_length = sequence_length(options, model.max_positions);
  limits.page_size = kPageSize;
  limits.vocabulary = model.vocabulary;
  limits.embedded = model.embedded;
  terms.lockstep = options.lockstep;
  terms.one_step_a_launch = options.device.launch != LoopLaunch::kLoop;
  terms.as_graph = options.device.launch == LoopLaunch::kGraph;
  terms.numerics = options.device.numerics;
  terms.weights = options.device.weights;
  terms.activations = options.device.activations;
  if (!for_gpu) terms.bf16 = bf16_unit();
  // A GPU multiplies in f32, unless something else is asked for, which keeps a model on the CPU.
  if (for_gpu && terms.activations == Activations::kAuto) terms.activations = Activations::kF32;
  terms.keeps_codes_of_tables = !for_gpu;
  terms.kv_dtype = options.device.kv_dtype;
  const bool may_round = for_gpu || terms.bf16 == Bf16Unit::kTiles;
  if (!may_round && terms.kv_dtype == DType::kUndefined) terms.kv_dtype = DType::kF32;
  terms.trace_events = options.device.trace_events;
  terms.processors = options.device.processors;
  terms.groups = options.device.groups;
  terms.yields_cores = options.yields_cores;
  return terms;
}

CompileOptions compile_options(const LaunchTerms& terms) {
  CompileOptions compile;
  compile.ranks = terms.ranks;
  compile.max_tokens = terms.limits.max_tokens;
  compile.max_rows = terms.limits.max_rows;
  compile.max_items = most_items(terms.limits.max_tokens, terms.limits.max_slots);
  compile.page_size = terms.limits.page_size;
  compile.storage = {terms.weights, terms.threads};
  compile.activations = terms.activations;
  compile.bf16 = terms.bf16;
  compile.keeps_codes_of_tables = terms.keeps_codes_of_tables;
  compile.kv_dtype = terms.kv_dtype;
  compile.machine_ranks = terms.machine_ranks;
  return compile;
}

Compiled compile_model(const DecoderModel& model, const LaunchTerms& terms) {
  Compiled compiled = compile_decoder(model, compile_options(terms));
  if (!terms.plan.empty()) force_plan(compiled, terms.plan);
  return compiled;
}

RaggedOptions ragged_options(const LaunchTerms& terms, std::shared_ptr<cuda::Gpu> gpu) {
  RaggedOptions ragged;
  ragged.limits = terms.limits;
  ragged.max_items = most_items(terms.limits.max_tokens, terms.limits.max_slots);
  ragged.threads = terms.threads;
  ragged.lockstep = terms.lockstep;
  ragged.trace_events = terms.trace_events;
  ragged.lease = terms.one_step_a_launch ? 1 : 0;
  ragged.yields_cores = terms.yields_cores;
  ragged.device.numerics = terms.numerics;
  ragged.device.as_graph = terms.as_graph;
  ragged.device.processors = terms.processors;
  ragged.device.groups = terms.groups;
  ragged.device.peer_links = wants_peer_links();
  ragged.gpu = std::move(gpu);
  return ragged;
}

}  // namespace ark
