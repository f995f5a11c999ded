#include "server/load/load_runner.h"

#include <malloc.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "base/bytes.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/sha256.h"
#include "engine/cuda/driver.h"
#include "engine/plain/plain_runner.h"
#include "engine/plain/run_budget.h"
#include "importer/decoder.h"
#include "server/load/compiled_model.h"
#include "server/load/members.h"
#include "server/load/model_cache.h"
#include "server/load/model_kind.h"
#include "server/load/ranks.h"
#include "server/load/terms.h"

namespace ark {
namespace {

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

// A prompt of so many tokens (as far as limits allow) through the whole path: faults show now and not at the first
// request.
void warm(StepRunner& runner, int32_t tokens = 1) {
  const RunnerLimits& limits = runner.limits();
  tokens = std::min({tokens, limits.max_tokens, limits.max_length, limits.page_size});
  StepDescriptor step;
  step.tokens.resize(static_cast<std::size_t>(tokens));
  step.sequences = {{0, 0, tokens, 0}};
  step.page_deltas = {{0, 0, 0}};
  step.rows.resize(1);
  step.rows[0].token = tokens - 1;
  runner.post(step);
  for (int i = 0; i < 600; ++i)
    if (const auto result = runner.poll(std::chrono::milliseconds(100))) {
      if (result->rows[0].error) throw *result->rows[0].error;
      return;
    }
  throw Error(Code::kUnavailable, "the first step did not finish within 60 s");
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

LoadedRunner load_plain(Graph graph, const ServedPlain& served, const LoadOptions& options, StageLog& log) {
  if (!served.signature)
    throw Error(Code::kUnsupported, "the model is no decoder that can be served (ark-run can run it): " +
                                        why_not_served(graph, options.plain ? "" : served.reason));
  log.fact("plain", "served as it is, one sequence at a time, on one rank: " + served.reason);
  const auto weights = static_cast<int64_t>(weights_of(graph).bytes);
  check_fits(weights, "weights of " + mebibytes(weights), "; give it more, or a model of smaller types");
  const PlainRunnerOptions plain = {
      .max_length = sequence_length(options, served.signature->max_positions),
      .max_slots = options.max_sequences,
      .max_tokens = options.max_batched_tokens > 0 ? options.max_batched_tokens : 512,
      .parts_prompts = served.parts_prompts,
      .limits = options.run};
  auto model = std::make_shared<PlainModel>(std::move(graph), *served.signature, plain);
  log.done("load", std::to_string(model->graph.nodes.size()) + " nodes");
  try {
    warm(model->runner, 2);       // a single row broadcasts where several do not
  } catch (const Error& error) {  // no request would fare better
    if (error.code() != Code::kInvalidArgument) throw;
    throw Error(Code::kBadModel, "the model cannot run a prompt: " + std::string(error.what()));
  }
  log.done("warm");
  return {std::shared_ptr<StepRunner>(model, &model->runner),
          {},
          false,
          options.is_supervised || options.wants_identity ? identity_of(model->graph) : ""};
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

void refuse_plain(const LoadOptions& options, std::size_t started_ranks, const std::string& reason) {
  if (options.device.device == Device::kCuda)
    throw Error(Code::kUnsupported,
                "--device cuda: the GPU runs recognised decoders, this model is served plain: " + reason);
  if (started_ranks > 0)
    throw Error(Code::kUsage, "the model is served plain, by one rank, and " + std::to_string(started_ranks) +
                                  " were started: " + reason);
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
  CompiledModel model;
};

void check_fits(const Job& job, const std::vector<Site>& sites) {
  for (const Site& site : sites) {
    const RunnerMemory memory = memory_at(site, job.model.compiled, job.terms.limits.pages);
    check_fits(
        memory.weights + memory.other + memory.pages,
        (sites.size() > 1 ? site.host + ": " : "") + "weights of " + mebibytes(memory.weights) +
            ", activations of " + mebibytes(memory.other) + ", keys and values of " + mebibytes(memory.pages),
        "; lower --kv-memory, --max-num-batched-tokens or --max-num-seqs, or give it more", site.memory);
  }
}

std::shared_ptr<RaggedRunner> launch(Job job, const Placement& place, std::optional<RankGroup>& group,
                                     bool is_supervised, PackedHook on_packed) {
  Compiled& compiled = job.model.compiled;
  if (!place.in_processes) {
    RaggedOptions ragged = ragged_options(job.terms, place.gpu);
    ragged.on_packed = std::move(on_packed);
    return make_ragged_runner(std::move(compiled), ragged);
  }
  if (!group) group.emplace(job.terms.ranks, is_supervised ? kSupervisedWatch : dma::WatchOptions{});
  return group->run(std::move(compiled), job.model.fingerprint, job.terms, place.gpu, std::move(on_packed));
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

LaunchTerms terms_at(const DecoderFacts& model, const LoadOptions& options, const Placement& place) {
  LaunchTerms terms = terms_for(model, options, place.gpu != nullptr);
  if (!place.sites.empty() && options.threads == 0) terms.threads = threads_for(place.sites, options.tp);
  // A group that re-forms keeps its plan, wherever its ranks are now.
  if (!place.gpu)
    terms.machine_ranks = options.machine_ranks > 0 ? options.machine_ranks : machine_ranks_of(place.sites);
  return terms;
}

// Whether the programs were compiled for a GPU that turned out not to run them.
bool is_for_lost_gpu(const LoadOptions& options, bool had_gpu, const Placement& place) {
  return had_gpu && !place.gpu &&
         (options.device.activations == Activations::kAuto || options.device.kv_dtype == DType::kUndefined);
}

// What an earlier start has compiled.
std::optional<Job> find_kept(const LoadOptions& options, const std::shared_ptr<const DiskCache>& disk,
                             Placement& place, StageLog& log) {
  Job job{terms_at({}, options, place), {}};
  std::optional<CompiledModel> kept = ModelCache(disk, options.model, job.terms).find();
  if (!kept) return std::nullopt;
  Placement tried = place;
  log_kept(*kept, log);
  place_logged(tried, kept->compiled.programs, options, log);
  if (is_for_lost_gpu(options, place.gpu != nullptr, tried)) return std::nullopt;
  place = std::move(tried);
  job.terms = terms_at(kept->facts, options, place);
  job.model = *std::move(kept);
  return job;
}

Job compile_anew(const DecoderModel& model, const LoadOptions& options,
                 const std::vector<onnx::SourceFile>& files, Placement& place, StageLog& log) {
  const bool had_gpu = place.gpu != nullptr;
  Job job{terms_at(facts_of(model), options, place), {}};
  job.model = compile_logged(model, job.terms, files, log);
  place_logged(place, job.model.compiled.programs, options, log);
  if (!is_for_lost_gpu(options, had_gpu, place)) return job;
  job.terms = terms_at(facts_of(model), options, place);
  job.model = compile_logged(model, job.terms, files, log);
  return job;
}

// Of the ranks that run in this process.
bool read_weights(const ModelCache& cache, Job& job, bool in_processes, const RanksHere& here) {
  const int all = job.terms.ranks, threads = job.terms.threads, own = here.threads(threads, all);
  for (int rank = 0; rank < (in_processes ? 1 : all); ++rank)
    if (!cache.read_weights(job.model, rank, own, here.node(rank, all, threads))) return false;
  return true;
}

void settle_sites(Placement& place, const RankGroup& group, const LoadOptions& options) {
  place.sites = sites_of(group.members(), options.tp);
  if (!place.gpu || place.sites.size() < 2) return;
  place.why_cpu = "GPUs of several machines are not there yet";
  if (options.device.device == Device::kCuda)
    throw Error(Code::kUnsupported, "--device cuda: " + place.why_cpu);
  place.gpu = nullptr;
}

// One for each node of the machine's memory, so that each reads its own weights from near.
void choose_ranks(LoadOptions& options, bool on_gpu, StageLog& log) {
  if (options.tp != 0 || on_gpu || !options.plan.empty() || options.lockstep || options.is_alone) return;
  options.tp = Cores().ranks(options.threads);
  if (options.tp > 1)
    log.fact("ranks", std::to_string(options.tp) + ", one for each node of memory; --tp says otherwise");
}

std::string threads_text(int32_t threads) {
  const Cores cores;
  const std::string idle = threads == cores.threads() ? cores.text() : "";
  return std::to_string(threads) + (threads == 1 ? " thread" : " threads") +
         (idle.empty() ? "" : ", " + idle + "; --threads N takes more");
}

// A runner, and who keeps its model on disk.
struct Kept {
  std::shared_ptr<RaggedRunner> runner;
  std::unique_ptr<CacheWriter> writer;  // or null
};

// `looks`: whether the model may be one that is kept.
LoadedRunner load_in(std::optional<RankGroup>& group, LoadOptions options,
                     const std::shared_ptr<const DiskCache>& disk, bool looks, StageLog& log) {
  sequence_length(options, 0);  // what the configuration refuses is refused before the file is read
  Placement place;
  place.gpu = choose_gpu(options.device.device, &place.why_cpu, disk);
  if (group) settle_sites(place, *group, options);
  choose_ranks(options, place.gpu != nullptr, log);
  std::optional<Job> job;
  if (looks && !options.plain) job = find_kept(options, disk, place, log);
  const bool is_kept = job.has_value();
  if (!is_kept) {
    std::vector<onnx::SourceFile> files;
    Graph graph = import_logged(options, files, log);
    const auto recognised = recognise_logged(graph, options, log);
    if (const auto* no = std::get_if<ServedPlain>(&recognised)) {
      refuse_plain(options, group ? group->members().size() : 0, no->reason);
      return load_plain(std::move(graph), *no, options, log);
    }
    graph = {};
    job = compile_anew(std::get<DecoderModel>(recognised), options, files, place, log);
  }
  const Compiled& compiled = job->model.compiled;
  job->terms.on_gpu = place.gpu != nullptr;
  if (place.sites.empty()) place.sites = sites_of({}, job->terms.ranks);
  settle_pages(job->terms.limits, compiled.programs,
               cache_bytes(options, compiled, job->terms.limits, place));
  if (!place.gpu) check_fits(*job, place.sites);
  const LaunchTerms terms = job->terms;
  const ModelCache cache(disk, options.model, terms);
  const RanksHere here = group ? ranks_here(group->members(), 0) : RanksHere{};
  if (is_kept && !read_weights(cache, *job, place.in_processes, here)) {
    log.fact("kept", "its weights are not: they are made anew");
    return load_in(group, options, disk, false, log);
  }
  Fingerprint& fingerprint = job->model.fingerprint;
  fingerprint.source = source_of(options.model, job->model.files);
  const std::string identity =
      options.is_supervised || options.wants_identity ? fingerprint.programs + fingerprint.weights : "";
  auto held = std::make_shared<Kept>();
  if (!is_kept && cache.keeps(job->model))
    held->writer = std::make_unique<CacheWriter>(cache, job->model, true, options.finishes_cache);
  held->runner = launch(*std::move(job), place, group, options.is_supervised,
                        held->writer ? held->writer->hook() : nullptr);
  RaggedRunner* const runner = held->runner.get();
  malloc_trim(0);  // what codes and windows were held in
  const RunnerMemory memory = runner->memory();
  log.done("pack", mebibytes(memory.weights) + " of weights" + (is_kept ? ", kept by an earlier start" : ""));
  if (place.in_processes) {
    log.fact("ranks", placement_text(place.sites) + ", by " + std::string(runner->transport()));
    log.fact("pairs", dma::text_of(runner->pairs()));
    for (const std::string& line : dma::outliers(runner->pairs())) log_line(LogLevel::kWarning, line);
  }
  log.fact("device", place.gpu ? describe(*runner->device(), *place.gpu)
                               : "cpu, " + threads_text(terms.threads) + " (" + place.why_cpu + ")");
  if (place.gpu && !runner->device()->ways().empty())
    log.fact("links", cuda::text_of(runner->device()->ways()));
  warm(*runner);
  log.done("warm");
  if (held->writer) held->writer->start();
  report_memory(*runner, terms.ranks, place.in_processes, log);
  return {std::shared_ptr<StepRunner>(std::move(held), runner), memory, true, identity, terms.machine_ranks};
}

}  // namespace

LoadedRunner load_runner(const LoadOptions& asked, StageLog& log) {
  LoadOptions options = asked;
  std::optional<RankGroup> group;
  if (!options.is_alone) group = meet_logged(options, log);
  try {
    return load_in(group, options, disk_cache_of(options), true, log);
  } catch (const std::exception&) {
    if (group) group->refuse(current_error().what());
    throw;
  }
}

}  // namespace ark
