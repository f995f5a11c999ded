#include "server/load/load_runner.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/memory.h"
#include "dma/launch.h"
#include "dma/wait.h"
#include "engine/cuda/driver.h"
#include "engine/plain/plain_runner.h"
#include "engine/plan_file.h"
#include "engine/run/weight_store.h"
#include "importer/import.h"

namespace ark {
namespace {

constexpr int32_t kPageSize = 16;
// Rank 0's choice of the memory for keys and values, for its rank processes: free memory differs by then.
constexpr const char* kKvBytesVariable = "ARK_KV_BYTES";
// Where rank 0 runs, for its rank processes: "cuda" or "cpu"; all ranks run there, or none.
constexpr const char* kRankDeviceVariable = "ARK_RANK_DEVICE";

std::string mebibytes(int64_t bytes) { return std::to_string((bytes + (1 << 19)) >> 20) + " MiB"; }

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

// The longest sequence: what is asked for, within what the model can do.
int32_t sequence_length(const LoadOptions& options, int64_t model_positions) {
  int64_t most = model_positions > 0 ? model_positions : int64_t{1} << 20;
  if (options.max_length > most)
    throw Error(Code::kUsage, "--max-model-len " + std::to_string(options.max_length) +
                                  " exceeds the model's " + std::to_string(most) + " positions");
  if (options.max_length > 0) return options.max_length;
  if (options.config_length > 0) most = std::min<int64_t>(most, options.config_length);
  return static_cast<int32_t>(model_positions > 0 || options.config_length > 0 ? most : 2048);
}

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw Error(Code::kNotFound, "cannot open " + escaped(file.string()));
  return {std::istreambuf_iterator<char>(in), {}};
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

// One token through the whole path: faults show now and not at the first request.
void warm(StepRunner& runner) {
  StepDescriptor step;
  step.tokens = {0};
  step.sequences = {{0, 0, 1, 0}};
  step.page_deltas = {{0, 0, 0}};
  step.rows.resize(1);
  runner.post(step);
  for (int i = 0; i < 600; ++i)
    if (runner.poll(std::chrono::milliseconds(100))) return;
  throw Error(Code::kUnavailable, "the first step did not finish within 60 s");
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
  if (!signature)
    throw Error(Code::kUnsupported,
                "the model is no decoder that can be served: " + why + "; run it with ark-run");
  log.fact("plain", "served as it is, one sequence at a time, on one rank: " + reason);
  PlainRunnerOptions plain;
  plain.max_slots = options.max_sequences;
  plain.max_length = sequence_length(options, signature->max_positions);
  plain.max_tokens = options.max_batched_tokens > 0 ? options.max_batched_tokens : 512;
  auto model = std::make_shared<PlainModel>(std::move(graph), *signature, plain);
  log.done("load", std::to_string(model->graph.nodes.size()) + " nodes");
  return {std::shared_ptr<StepRunner>(model, &model->runner), {}, false};
}

// A runner of several processes with the processes.
struct ProcessModel {
  std::unique_ptr<dma::RankProcesses> processes;
  std::unique_ptr<RaggedRunner> runner;  // ends first
};

std::vector<std::string> own_arguments() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string word; std::getline(in, word, '\0');) arguments.push_back(word);
  if (!arguments.empty()) arguments.erase(arguments.begin());
  return arguments;
}

std::string recognised_text(const DecoderModel& model) {
  std::string text = std::to_string(model.caches.size()) + " attention layers";
  if (!model.caches.empty())
    text += ", " + std::to_string(model.caches[0].kv_heads) + " kv heads of " +
            std::to_string(model.caches[0].key_dim);
  return text + ", vocabulary " + std::to_string(model.vocabulary);
}

}  // namespace

int32_t table_length(const LoadOptions& options) {
  return options.max_length > 0 ? options.max_length : options.config_length;
}

Compilation compile_model(const DecoderModel& model, const LoadOptions& options, StageLog& log) {
  Compilation c;
  RunnerLimits& limits = c.ragged.limits;
  const std::string plan_file = options.plan.empty() ? "" : read_text(options.plan);
  const int32_t ranks = ranks_of(options, plan_file);
  limits.max_tokens = options.max_batched_tokens > 0 ? options.max_batched_tokens : 512;
  limits.max_tokens =
      std::max(limits.max_tokens, options.max_sequences);  // a decode step takes one token of each
  limits.max_slots = options.max_sequences;
  limits.max_rows = std::max(32, options.max_sequences);
  limits.max_length = sequence_length(options, model.max_positions);
  limits.page_size = kPageSize;
  limits.vocabulary = static_cast<int32_t>(model.vocabulary);
  c.ragged.max_items = most_items(limits.max_tokens, limits.max_slots);
  c.ragged.threads = options.threads > 0 ? options.threads : dma::available_cpus();
  c.ragged.lockstep = options.lockstep;
  c.ragged.trace_events = options.device.trace_events;
  c.ragged.lease = options.device.launch == LoopLaunch::kLoop ? 0 : 1;
  CompileOptions compile;
  compile.ranks = ranks;
  compile.max_tokens = limits.max_tokens;
  compile.max_rows = limits.max_rows;
  compile.max_items = c.ragged.max_items;
  compile.page_size = kPageSize;
  c.compiled = compile_decoder(model, compile);
  if (!options.plan.empty()) force_plan(c.compiled, plan_file);
  const int64_t page = std::max<int64_t>(1, page_bytes(c.compiled.programs));
  const int64_t pages_each = (limits.max_length + kPageSize - 1) / kPageSize;
  c.ragged.kv_bytes = options.kv_memory;
  if (c.ragged.kv_bytes == 0)
    c.ragged.kv_bytes =
        std::max(page, std::min(page * pages_each * limits.max_slots, available_memory() / 4));
  // Memory that can never be used is not asked for.
  limits.pages =
      static_cast<int32_t>(std::min<int64_t>(c.ragged.kv_bytes / page, pages_each * limits.max_slots));
  std::string plan;
  for (const std::string& line : c.compiled.plan.summary) plan += (plan.empty() ? "" : "; ") + line;
  log.done("partition", "tp=" + std::to_string(ranks) + (plan.empty() ? "" : ": " + plan));
  log.done("lower", std::to_string(c.compiled.programs[0].phases.size()) + " phases, " +
                        std::to_string(c.compiled.programs[0].variants.size()) + " variants");
  return c;
}

namespace {

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

// Keys and values: what the user says, else what all sequences can need and every rank's GPU has left;
// `gpus`: over how many the ranks are spread; more than one, or `processes`: each rank is a process.
void settle_gpu(Compilation& c, const LoadOptions& options, std::shared_ptr<cuda::Gpu> gpu, int gpus,
                bool processes) {
  RunnerLimits& limits = c.ragged.limits;
  if (options.kv_memory == 0) {
    std::vector<int64_t> free = {static_cast<int64_t>(gpu->free_bytes())};
    // The others are opened for a look only: their ranks' processes open them again.
    for (int g = 1; g < gpus; ++g) free.push_back(static_cast<int64_t>(cuda::open_gpu(g)->free_bytes()));
    const int64_t needed = int64_t{limits.max_slots} * ((limits.max_length + kPageSize - 1) / kPageSize);
    const int64_t room = pages_with_room(c.compiled, free, processes);
    limits.pages = static_cast<int32_t>(std::clamp<int64_t>(room, 1, needed));
    c.ragged.kv_bytes = limits.pages * page_bytes(c.compiled.programs);  // what rank processes are told
  }
  c.ragged.device.numerics = options.device.numerics;
  c.ragged.device.as_graph = options.device.launch == LoopLaunch::kGraph;
  c.ragged.gpu = std::move(gpu);
}

void refuse_plain_on_gpu(const LoadOptions& options, const std::string& reason) {
  if (options.device.device == Device::kCuda)
    throw Error(Code::kUnsupported,
                "--device cuda: the GPU runs recognised decoders, this model is served plain: " + reason);
}

}  // namespace

LoadedRunner load_runner(const LoadOptions& options, StageLog& log) {
  std::string why_cpu;
  std::shared_ptr<cuda::Gpu> gpu = choose_gpu(options.device.device, &why_cpu);
  Graph graph = import_logged(options, log);
  if (options.plain) refuse_plain_on_gpu(options, "asked for");
  if (options.plain) return load_plain(std::move(graph), options, "asked for", log);
  auto recognised = recognise_decoder(graph, table_length(options));
  if (const auto* no = std::get_if<NotRecognised>(&recognised)) {
    log.done("recognise", "no");
    const std::string reason = (no->node.empty() ? "" : "node " + escaped(no->node) + ": ") + no->reason;
    refuse_plain_on_gpu(options, reason);
    return load_plain(std::move(graph), options, reason, log);
  }
  const auto& model = std::get<DecoderModel>(recognised);
  log.done("recognise", "ragged decoder: " + recognised_text(model));
  graph = {};
  Compilation c = compile_model(model, options, log);
  recognised = NotRecognised{};
  gpu = gpu_for(options, std::move(gpu), c.compiled.programs, &why_cpu);
  LoadedRunner loaded;
  loaded.is_ragged = true;
  const auto ranks = static_cast<int32_t>(c.compiled.programs.size());
  const bool in_processes = options.processes && ranks > 1;
  const int gpus = gpu && in_processes ? std::min(ranks, cuda::count_gpus()) : 1;
  if (gpu) settle_gpu(c, options, gpu, gpus, in_processes);
  if (gpu && in_processes)
    log.fact("ranks", std::to_string(ranks) + " processes on " + std::to_string(gpus) + " GPUs" +
                          (gpus < ranks ? "; loops that share a GPU take turns, which is slow: without "
                                          "--processes they run as one"
                                        : ""));
  auto holder = std::make_shared<ProcessModel>();
  if (in_processes) {
    ::setenv(kKvBytesVariable, std::to_string(c.ragged.kv_bytes).c_str(), 1);
    ::setenv(kRankDeviceVariable, gpu ? "cuda" : "cpu", 1);
    holder->processes = std::make_unique<dma::RankProcesses>(ranks, own_arguments());
    holder->runner = make_ragged_runner(std::move(c.compiled), c.ragged, holder->processes->environment());
  } else {
    holder->runner = make_ragged_runner(std::move(c.compiled), c.ragged);
  }
  loaded.memory = holder->runner->memory();
  loaded.runner = std::shared_ptr<StepRunner>(holder, holder->runner.get());
  log.done("pack", mebibytes(loaded.memory.weights) + " of weights");
  log.fact("device", gpu ? describe(*holder->runner->device(), *gpu)
                         : "cpu, " + std::to_string(c.ragged.threads) + " threads (" + why_cpu + ")");
  warm(*loaded.runner);
  log.done("warm");
  const RunnerLimits& limits = loaded.runner->limits();
  log.fact("memory", "weights " + mebibytes(loaded.memory.weights) + ", keys and values " +
                         mebibytes(loaded.memory.pages) + ", activations " + mebibytes(loaded.memory.other) +
                         (options.processes ? " on rank 0" : " on " + std::to_string(ranks) + " ranks"));
  log.fact("kv", std::to_string(int64_t{limits.pages} * limits.page_size) + " tokens in " +
                     std::to_string(limits.pages) + " pages; a sequence has up to " +
                     std::to_string(limits.max_length));
  return loaded;
}

namespace {

// The GPU of this rank process where rank 0 runs on one, else null.
std::shared_ptr<cuda::Gpu> open_gpu_of(const dma::Environment& environment) {
  const char* device = std::getenv(kRankDeviceVariable);
  if (!device || std::string_view(device) != "cuda") return nullptr;
  return cuda::open_gpu(gpu_of_rank(environment.rank, cuda::count_gpus()));
}

void run_rank_of(const dma::Environment& environment, LoadOptions options) {
  if (const char* bytes = std::getenv(kKvBytesVariable)) options.kv_memory = std::strtoll(bytes, nullptr, 10);
  std::shared_ptr<cuda::Gpu> gpu = open_gpu_of(environment);
  StageLog quiet([](const std::string&) {});
  const Graph graph = import_logged(options, quiet);
  auto recognised = recognise_decoder(graph, table_length(options));
  if (std::holds_alternative<NotRecognised>(recognised))
    throw Error(Code::kInternal, "a rank process does not recognise the model that rank 0 did");
  Compilation c = compile_model(std::get<DecoderModel>(recognised), options, quiet);
  if (gpu) settle_gpu(c, options, std::move(gpu), 1, true);
  serve_rank(std::move(c.compiled), c.ragged, environment);
}

}  // namespace

int run_rank_process(LoadOptions options) {
  const dma::Environment environment = dma::Environment::from_process();
  const std::string rank = "rank " + std::to_string(environment.rank);
  try {
    run_rank_of(environment, std::move(options));
  } catch (const Error& error) {
    const std::string what = error.what();
    const bool is_named =
        what.starts_with(rank) && what.substr(0, what.find_first_of(" ,:", rank.size())) == rank;
    throw Error(error.code(), is_named ? what : rank + ": " + what);
  }
  return 0;
}

}  // namespace ark
