#include "server/load/compiled_model.h"

#include <functional>
#include <map>
#include <utility>
#include <variant>

#include "base/error.h"
#include "engine/program/opcodes.h"
#include "engine/program/text.h"
#include "engine/program/unroll.h"
#include "importer/decoder.h"
#include "importer/import.h"
#include "server/load/load_runner.h"

namespace ark {
namespace {

std::string recognised_text(const DecoderModel& model) {
  std::string text = std::to_string(model.caches.size()) + " attention layers";
  if (!model.caches.empty())
    text += ", " + std::to_string(model.caches[0].kv_heads) + " kv heads of " +
            std::to_string(model.caches[0].key_dim);
  return text + ", vocabulary " + std::to_string(model.vocabulary);
}

// What of the plan fits beside "tp=64" in a terminal's 100 columns, the most telling parts first; all of it stands in
// ark-inspect --stage plan.
std::string short_plan(const std::vector<std::string>& summary) {
  constexpr std::size_t kColumns = 74 - std::string_view("tp=64; ...").size();
  std::string text;
  bool is_whole = true;
  for (const char* kind : {"attention", "AllReduce", "AllGather", "MatMul", "table"})
    for (const std::string& part : summary) {
      if (part.find(kind) == std::string::npos) continue;
      const bool fits = text.size() + 2 + part.size() <= kColumns;
      if (fits) text += (text.empty() ? ": " : "; ") + part;
      is_whole = is_whole && fits;
    }
  return is_whole ? text : text + "; ...";
}

// Which products are not of f32: "120 products in int8, 1 in f32, attention in bf16_tiles".
std::string arithmetic(const Program& program) {
  std::map<Precision, int64_t, std::greater<>> products;
  Precision attention = Precision::kF32;
  for (std::size_t p = 0; p < program.phases.size(); ++p) {
    const Variant& variant = program.variants[program.phases[p].variant];
    if (is_product(variant.code))
      products[variant.precision] +=
          trips_of(program, static_cast<PhaseId>(p)) * (variant.code == OpCode::kGatedMatMul ? 2 : 1);
    if (variant.code == OpCode::kAttention) attention = std::max(attention, variant.precision);
  }
  std::string text;
  for (const auto& [precision, count] : products)
    text += (text.empty() ? "" : ", ") + std::to_string(count) + (text.empty() ? " products in " : " in ") +
            std::string(name_of(precision));
  if (attention != Precision::kF32) text += ", attention in " + std::string(name_of(attention));
  return products.empty() || products.begin()->first == Precision::kF32 ? "" : text;
}

// What is worth knowing of all compiled models.
void log_facts(const Compiled& compiled, StageLog& log) {
  if (!compiled.storage.empty()) log.fact("weights", compiled.storage);
  if (const std::string text = arithmetic(compiled.programs[0]); !text.empty()) log.fact("arithmetic", text);
}

std::string plan_line(const Compiled& compiled) {
  return "tp=" + std::to_string(compiled.programs.size()) + short_plan(compiled.plan.summary);
}

// With masks as the proof has found them.
std::optional<DecoderSignature> driven_as(const Graph& graph,
                                          const std::variant<DecoderModel, NotRecognised>& recognised) {
  std::optional<DecoderSignature> signature = find_signature(graph, nullptr);
  const auto* model = std::get_if<DecoderModel>(&recognised);
  const auto* no = std::get_if<NotRecognised>(&recognised);
  const DecoderSignature* proven = model ? &model->signature : no->signature ? &*no->signature : nullptr;
  if (signature && proven) {
    signature->mask_meaning = proven->mask_meaning;
    signature->mask_by_query = proven->mask_by_query;
  }
  return signature;
}

}  // namespace

Graph import_logged(const LoadOptions& options, std::vector<onnx::SourceFile>& files, StageLog& log) {
  ImportOptions how;
  how.settle_controls = true;
  how.files = &files;
  how.on_stage = [&](const std::string& stage, const Graph* made, double) {
    if (stage == "parse") log.done("parse", options.model.filename().string());
    if (stage == "graph" && made) log.done("infer", std::to_string(made->nodes.size()) + " nodes");
  };
  Graph graph = import_model(options.model, how);
  log.done("passes", std::to_string(graph.nodes.size()) + " nodes");
  for (const auto& [name, value] : graph.settled)
    log.fact("input", escaped(name) + " is taken to be " + std::to_string(value));
  return graph;
}

std::variant<DecoderModel, ServedPlain> recognise_logged(const Graph& graph, const LoadOptions& options,
                                                         StageLog& log) {
  auto recognised = recognise_decoder(graph, table_length(options));
  const auto* no = std::get_if<NotRecognised>(&recognised);
  // Nobody has proven that a token's numbers do not depend on how many are read with it. States follow each token.
  const auto plain = [&](const std::string& reason) {
    const std::optional<DecoderSignature> signature = driven_as(graph, recognised);
    return ServedPlain{reason, signature, !no || (signature && !signature->states.empty())};
  };
  if (options.plain) return plain("asked for");
  if (no) {
    log.done("recognise", "no");
    const std::string reason = (no->node.empty() ? "" : "node " + escaped(no->node) + ": ") + no->reason;
    if (no->fills_blanks)
      throw Error(Code::kUnsupported, reason + "; this model fills blanks and does not generate");
    return plain(reason);
  }
  auto& model = std::get<DecoderModel>(recognised);
  log.done("recognise", "ragged decoder: " + recognised_text(model));
  return std::move(model);
}

CompiledModel compile_logged(const DecoderModel& model, const LaunchTerms& terms,
                             const std::vector<onnx::SourceFile>& files, StageLog& log) {
  CompiledModel made{facts_of(model), recognised_text(model), compile_model(model, terms), {}, files};
  const Program& first = made.compiled.programs[0];
  log.done("partition", plan_line(made.compiled));
  log.done("lower", std::to_string(first.phases.size()) + " phases, " +
                        std::to_string(first.variants.size()) + " variants");
  log_facts(made.compiled, log);
  made.fingerprint = fingerprint_of(made.compiled);
  return made;
}

void log_kept(const CompiledModel& model, StageLog& log) {
  log.done("kept", "as an earlier start compiled it: " + model.recognised);
  log.fact("partition", plan_line(model.compiled));
  log_facts(model.compiled, log);
  log.enter("pack");
}

}  // namespace ark
