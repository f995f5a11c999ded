#include "server/load/load_runner.h"

#include <malloc.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/machine.h"
#include "base/sha256.h"
#include "engine/cuda/driver.h"
#include "engine/plain/plain_runner.h"
#include "engine/program/opcodes.h"
#include "engine/program/text.h"
#include "engine/program/unroll.h"
#include "importer/decoder.h"
#include "importer/import.h"
#include "server/load/members.h"
#include "server/load/ranks.h"
#include "server/load/terms.h"

namespace ark {
namespace {

std::string mebibytes(int64_t bytes) { return std::to_string((bytes + (1 << 19)) >> 20) + " MiB"; }

// Bytes that the process takes besides its model: threads, requests, windows through which weights are read.
constexpr int64_t kReserve = int64_t{48} << 20;

// Throws Error(kExhausted) if `need` bytes, which `what` names, are more than the process may still take: a kernel
// that runs out of memory later asks nobody whom to kill.
void check_fits(int64_t need, const std::string& what, const std::string& advice,
                int64_t left = available_memory()) {
  if (need + kReserve > left)
    throw Error(Code::kExhausted, what + " and " + mebibytes(kReserve) +
                                      " for the process do not fit in the " + mebibytes(left) +
                                      " of memory that machine, control group and limits leave" + advice);
}

Graph import_logged(const LoadOptions& options, StageLog& log) {
  ImportOptions how;
  how.settle_controls = true;
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

// One token through the whole path: faults show now and not at the first request.
void warm(StepRunner& runner) {
  StepDescriptor step;
  step.tokens = {0};
  step.sequences = {{0, 0, 1, 0}};
  step.page_deltas = {{0, 0, 0}};
  step.rows.resize(1);
  runner.post(step);
  for (int i = 0; i < 600; ++i)
    if (const auto result = runner.poll(std::chrono::milliseconds(100))) {
      if (result->rows[0].error) throw *result->rows[0].error;
      return;
    }
  throw Error(Code::kUnavailable, "the first step did not finish within 60 s");
}

// What an encoder or classifier of token ids computes, as "logits [batch, 3]"; "" if the model is something else.
std::string encoder_outputs(const Graph& graph) {
  for (const ValueId input : graph.inputs) {
    const Value& value = graph.value(input);
    if (is_floating(value.dtype) || (value.shape && value.shape->size() > 2)) return "";
  }
  std::string text;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const Value& value = graph.value(graph.outputs[i]);
    if (!is_floating(value.dtype)) continue;
    text += (text.empty() ? "" : ", ") + escaped(graph.output_names[i]) +
            (value.shape ? " " + str(*value.shape) : "");
  }
  return graph.inputs.empty() ? "" : text;
}

std::string identity_of(const Graph& graph) {
  std::vector<ConstantPtr> constants;
  for (const Value& value : graph.values) constants.push_back(value.constant);
  return sha256_hex(graph.str()) + samples_of(constants);
}

// The plain runner with the graph that it reads.
struct PlainModel {
  PlainModel(Graph g, const DecoderSignature& signature, const PlainRunnerOptions& options)
      : graph(std::move(g)), runner(graph, signature, options) {}
  Graph graph;
  PlainRunner runner;
};

LoadedRunner load_plain(Graph graph, const LoadOptions& options, const std::string& reason, StageLog& log) {
  std::string why;
  const auto signature = find_signature(graph, &why);
  if (!signature) {
    const std::string outputs = encoder_outputs(graph);
    if (!outputs.empty()) why = "it is an encoder or classifier, which outputs " + outputs;
    throw Error(Code::kUnsupported,
                "the model is no decoder that can be served: " + why + "; run it with ark-run");
  }
  log.fact("plain", "served as it is, one sequence at a time, on one rank: " + reason);
  int64_t weights = 0;
  for (const Value& value : graph.values)
    if (value.constant) weights += bytes_of(value.dtype, value.constant->size());
  check_fits(weights, "weights of " + mebibytes(weights), "");
  PlainRunnerOptions plain;
  plain.max_slots = options.max_sequences;
  plain.max_length = sequence_length(options, signature->max_positions);
  plain.max_tokens = options.max_batched_tokens > 0 ? options.max_batched_tokens : 512;
  auto model = std::make_shared<PlainModel>(std::move(graph), *signature, plain);
  log.done("load", std::to_string(model->graph.nodes.size()) + " nodes");
  return {std::shared_ptr<StepRunner>(model, &model->runner),
          {},
          false,
          options.is_supervised ? identity_of(model->graph) : ""};
}

std::string recognised_text(const DecoderModel& model) {
  std::string text = std::to_string(model.caches.size()) + " attention layers";
  if (!model.caches.empty())
    text += ", " + std::to_string(model.caches[0].kv_heads) + " kv heads of " +
            std::to_string(model.caches[0].key_dim);
  return text + ", vocabulary " + std::to_string(model.vocabulary);
}

// Empty if each rank has a GPU to itself, or all run as one launch.
std::string why_not_shared(const LoadOptions& options, std::size_t ranks) {
  const auto gpus = static_cast<std::size_t>(options.processes && ranks > 1 ? cuda::count_gpus() : ranks);
  if (gpus >= ranks) return "";
  return std::to_string(ranks) + " processes on " + std::to_string(gpus) +
         " GPUs would take turns, which is slow; give --device cuda for that, or leave --processes out";
}

// The GPU that will run the programs, or null for the CPU; `why` then says why. Throws Error(kUnsupported)
// where the GPU was asked for and cannot.
std::shared_ptr<cuda::Gpu> gpu_for(const LoadOptions& options, std::shared_ptr<cuda::Gpu> gpu,
                                   const std::vector<Program>& programs, std::string* why) {
  if (!gpu) return nullptr;
  if (options.lockstep) {
    *why = "the oracle was asked for";
  } else {
    *why = why_not_on_gpu(programs, options.device.numerics);
    if (why->empty() && options.device.device == Device::kAuto)
      *why = why_not_shared(options, programs.size());
  }
  if (why->empty()) return gpu;
  if (options.device.device == Device::kCuda) throw Error(Code::kUnsupported, "--device cuda: " + *why);
  return nullptr;
}

void refuse_plain_on_gpu(const LoadOptions& options, const std::string& reason) {
  if (options.device.device == Device::kCuda)
    throw Error(Code::kUnsupported,
                "--device cuda: the GPU runs recognised decoders, this model is served plain: " + reason);
}

// Where the programs run.
struct Placement {
  std::shared_ptr<cuda::Gpu> gpu;  // null: the CPU
  std::string why_cpu;
  int gpus = 1;  // over which the ranks are spread
  bool in_processes = false;
  std::vector<Site> sites;  // of the CPU's ranks
};

void place_logged(Placement& place, const std::vector<Program>& programs, const LoadOptions& options,
                  StageLog& log) {
  const auto ranks = static_cast<int>(programs.size());
  place.gpu = gpu_for(options, std::move(place.gpu), programs, &place.why_cpu);
  place.in_processes = options.processes && ranks > 1;
  if (!place.gpu || !place.in_processes) return;
  place.gpus = std::min(ranks, cuda::count_gpus());
  log.fact("ranks", std::to_string(ranks) + " processes on " + std::to_string(place.gpus) + " GPUs" +
                        (place.gpus < ranks ? "; loops that share a GPU take turns, which is slow: without "
                                              "--processes they run as one"
                                            : ""));
}

// Tokens: a server whose sequences end before that helps nobody, unless it was asked for.
constexpr int32_t kShortest = 512;

// For keys and values: what the user says, else what every rank's GPU has left, or half of what weights and
// activations leave of this machine's memory.
int64_t cache_bytes(const LoadOptions& options, const Compiled& compiled, const RunnerLimits& limits,
                    const Placement& place) {
  const int64_t page = std::max<int64_t>(1, page_bytes(compiled.programs));
  if (options.pages != 0) return page * options.pages;
  if (options.kv_memory != 0) return options.kv_memory;
  if (!place.gpu) {
    const int64_t shortest = std::min(limits.max_length, kShortest) / limits.page_size + 1;
    return page * std::max(pages_for(place.sites, compiled, kReserve), shortest);
  }
  std::vector<int64_t> free = {static_cast<int64_t>(place.gpu->free_bytes())};
  // The others are opened for a look only: their ranks' processes open them again.
  for (int g = 1; g < place.gpus; ++g) free.push_back(static_cast<int64_t>(cuda::open_gpu(g)->free_bytes()));
  return page * std::max<int64_t>(1, pages_with_room(compiled, free, place.in_processes));
}

struct Job {
  LaunchTerms terms;
  Compiled compiled;
};

void check_fits(const Job& job, const std::vector<Site>& sites) {
  for (const Site& site : sites) {
    const RunnerMemory memory = memory_at(site, job.compiled, job.terms.limits.pages);
    check_fits(
        memory.weights + memory.other + memory.pages,
        (sites.size() > 1 ? site.host + ": " : "") + "weights of " + mebibytes(memory.weights) +
            ", activations of " + mebibytes(memory.other) + ", keys and values of " + mebibytes(memory.pages),
        "; lower --kv-memory, --max-num-batched-tokens or --max-num-seqs, or give it more", site.memory);
  }
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

// Which products are not of f32: "120 products in int8, 1 in f32".
std::string arithmetic(const Program& program) {
  std::map<Precision, int64_t, std::greater<>> products;
  for (std::size_t p = 0; p < program.phases.size(); ++p) {
    const Variant& variant = program.variants[program.phases[p].variant];
    if (is_product(variant.code))
      products[variant.precision] +=
          trips_of(program, static_cast<PhaseId>(p)) * (variant.code == OpCode::kGatedMatMul ? 2 : 1);
  }
  std::string text;
  for (const auto& [precision, count] : products)
    text += (text.empty() ? "" : ", ") + std::to_string(count) + (text.empty() ? " products in " : " in ") +
            std::string(name_of(precision));
  return products.empty() || products.begin()->first == Precision::kF32 ? "" : text;
}

Job compile_logged(const DecoderModel& model, const LoadOptions& options, bool for_gpu,
                   const std::vector<Site>& sites, StageLog& log) {
  Job job;
  job.terms = terms_for(model, options, for_gpu);
  if (!sites.empty() && options.threads == 0) job.terms.threads = threads_for(sites, options.tp);
  job.compiled = compile_model(model, job.terms);
  const Program& first = job.compiled.programs[0];
  if (!job.compiled.storage.empty()) log.fact("weights", job.compiled.storage);
  log.done("partition", "tp=" + std::to_string(job.terms.ranks) + short_plan(job.compiled.plan.summary));
  log.done("lower", std::to_string(first.phases.size()) + " phases, " +
                        std::to_string(first.variants.size()) + " variants");
  if (const std::string text = arithmetic(first); !text.empty()) log.fact("arithmetic", text);
  return job;
}

std::shared_ptr<RaggedRunner> launch(Job job, const Placement& place, std::optional<RankGroup>& group,
                                     bool is_supervised) {
  if (!place.in_processes)
    return make_ragged_runner(std::move(job.compiled), ragged_options(job.terms, place.gpu));
  if (!group) group.emplace(job.terms.ranks, is_supervised ? kSupervisedWatch : dma::WatchOptions{});
  return group->run(std::move(job.compiled), job.terms, place.gpu);
}

// nullopt with `reason` if it is served plain.
std::optional<DecoderModel> recognise_logged(const Graph& graph, const LoadOptions& options, StageLog& log,
                                             std::string& reason) {
  reason = "asked for";
  if (options.plain) return std::nullopt;
  auto recognised = recognise_decoder(graph, table_length(options));
  if (const auto* no = std::get_if<NotRecognised>(&recognised)) {
    log.done("recognise", "no");
    reason = (no->node.empty() ? "" : "node " + escaped(no->node) + ": ") + no->reason;
    if (no->fills_blanks)
      throw Error(Code::kUnsupported, reason + "; this model fills blanks and does not generate");
    return std::nullopt;
  }
  auto& model = std::get<DecoderModel>(recognised);
  log.done("recognise", "ragged decoder: " + recognised_text(model));
  return std::move(model);
}

void report_memory(const RaggedRunner& runner, int32_t ranks, bool in_processes, StageLog& log) {
  const RunnerMemory memory = runner.memory();
  const RunnerLimits& limits = runner.limits();
  log.fact("memory", "weights " + mebibytes(memory.weights) + ", activations " + mebibytes(memory.other) +
                         ", keys and values up to " + mebibytes(memory.pages) + ", which are touched on use" +
                         (in_processes ? ", on rank 0"
                          : ranks > 1  ? ", on " + std::to_string(ranks) + " ranks"
                                       : ""));
  log.fact("kv", std::to_string(int64_t{limits.pages} * limits.page_size) + " tokens in " +
                     kv_name(runner.program()) + ", " + std::to_string(limits.pages) +
                     " pages; a sequence has up to " + std::to_string(limits.max_length));
}

// The group that a launcher has started, which settles some options; none if there is none.
std::optional<RankGroup> meet_logged(LoadOptions& options, StageLog& log) {
  const dma::Environment* launched = launched_group(options.cluster_key_file);
  if (launched == nullptr) return std::nullopt;
  if (options.tp > 0 && options.tp != launched->size)
    throw Error(Code::kUsage, "--tp " + std::to_string(options.tp) + ", but " +
                                  std::to_string(launched->size) +
                                  " ranks have been started; leave --tp out, or start as many");
  options.tp = launched->size;
  options.processes = true;
  log.enter("meet");
  RankGroup group(*launched, options.is_supervised ? kSupervisedWatch : dma::WatchOptions{}, kLaunchTime);
  log.done("meet", placement_text(sites_of(group.members(), options.tp)));
  log.enter("parse");
  return group;
}

LoadedRunner load_in(std::optional<RankGroup>& group, const LoadOptions& options, StageLog& log) {
  sequence_length(options, 0);  // what the configuration refuses is refused before the file is read
  Placement place;
  place.gpu = choose_gpu(options.device.device, &place.why_cpu);
  Graph graph = import_logged(options, log);
  std::string reason;
  std::optional<DecoderModel> model = recognise_logged(graph, options, log, reason);
  if (!model) {
    refuse_plain_on_gpu(options, reason);
    if (group)
      throw Error(Code::kUsage, "the model is served plain, by one rank, and " +
                                    std::to_string(group->members().size()) + " were started: " + reason);
    return load_plain(std::move(graph), options, reason, log);
  }
  graph = {};
  if (group) place.sites = sites_of(group->members(), options.tp);
  if (place.gpu && place.sites.size() > 1) {
    place.why_cpu = "GPUs of several machines are not there yet";
    if (options.device.device == Device::kCuda)
      throw Error(Code::kUnsupported, "--device cuda: " + place.why_cpu);
    place.gpu = nullptr;
  }
  const bool has_gpu = place.gpu != nullptr;
  Job job = compile_logged(*model, options, has_gpu, place.sites, log);
  place_logged(place, job.compiled.programs, options, log);
  if (has_gpu && !place.gpu &&
      (options.device.activations == Activations::kAuto || options.device.kv_dtype == DType::kUndefined))
    job = compile_logged(*model, options, false, place.sites, log);
  model.reset();
  job.terms.on_gpu = place.gpu != nullptr;
  if (place.sites.empty()) place.sites = sites_of({}, job.terms.ranks);
  settle_pages(job.terms.limits, job.compiled.programs,
               cache_bytes(options, job.compiled, job.terms.limits, place));
  if (!place.gpu) check_fits(job, place.sites);
  const LaunchTerms terms = job.terms;
  std::string identity;
  if (options.is_supervised) {
    const Fingerprint fingerprint = fingerprint_of(job.compiled);
    identity = fingerprint.programs + fingerprint.weights;
  }
  const std::shared_ptr<RaggedRunner> runner = launch(std::move(job), place, group, options.is_supervised);
  malloc_trim(0);  // what codes and windows were held in
  const RunnerMemory memory = runner->memory();
  log.done("pack", mebibytes(memory.weights) + " of weights");
  if (place.in_processes)
    log.fact("ranks", placement_text(place.sites) + ", by " + std::string(runner->transport()));
  log.fact("device", place.gpu
                         ? describe(*runner->device(), *place.gpu)
                         : "cpu, " + std::to_string(terms.threads) + " threads (" + place.why_cpu + ")");
  if (place.gpu && !runner->device()->ways().empty())
    log.fact("links", cuda::text_of(runner->device()->ways()));
  warm(*runner);
  log.done("warm");
  report_memory(*runner, terms.ranks, place.in_processes, log);
  return {runner, memory, true, identity};
}

}  // namespace

LoadedRunner load_runner(const LoadOptions& asked, StageLog& log) {
  LoadOptions options = asked;
  std::optional<RankGroup> group;
  if (!options.is_alone) group = meet_logged(options, log);
  try {
    return load_in(group, options, log);
  } catch (const std::exception&) {
    if (group) group->refuse(current_error().what());
    throw;
  }
}

}  // namespace ark
