#include "server/tools/planner.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/index.h"
#include "base/machine.h"
#include "dma/bench.h"
#include "engine/program/unroll.h"
#include "server/load/compiled_model.h"
#include "server/load/device.h"
#include "server/load/load.h"
#include "server/tools/sequences.h"
#include "server/tools/step_profile.h"

namespace ark {
namespace {

SymbolValues sizes_of(const PlanOptions& options) {
  return {{"tokens", options.batch}, {"rows", options.batch}, {"items", options.batch}, {"pages", 0}};
}

void check_limits(const CutLimits& limits, int32_t ranks) {
  if (limits.enough) return;
  std::string why;
  for (const auto& [parts, limit] : limits.limits)
    why += (why.empty() ? ", only in " : ", ") + std::to_string(parts) + " (" + escaped(limit.name) + ")";
  throw Error(Code::kUsage, "--ranks " + std::to_string(ranks) +
                                ": some would compute nothing, as no weight can be cut in so many parts" +
                                why);
}

LinkRates measure_link(const GivenLink& given, const char* transport, bool posted, int32_t busy) {
  LinkRates link{given.latency_us / 1e6, given.gap_us / 1e6, given.gigabytes * 1e9};
  if (link.latency > 0 && link.gap > 0 && link.bandwidth > 0) return link;
  const std::vector<dma::BenchRow> rows =
      dma::bench_link(transport, posted, {.sizes = {4, 1 << 20}, .busy_threads = busy});
  // A batch is so many gaps, and an answer's way there and back, as a round of one message is.
  constexpr int kBatch = dma::BenchRow::kBatch;
  const double batch = kBatch / rows[0].messages_per_second, round = 2 * rows[0].latency_us.p50 / 1e6;
  const double gap = std::max((batch - round) / (kBatch - 1), batch / kBatch / kBatch);
  if (!(link.latency > 0)) link.latency = std::max(0.0, rows[0].latency_us.p10 / 1e6 - gap);
  if (!(link.gap > 0)) link.gap = gap;
  if (!(link.bandwidth > 0)) link.bandwidth = rows[1].gigabytes_per_second * 1e9;
  return link;
}

}  // namespace

ServeOptions PlanOptions::loading(int32_t tp) const {
  ServeOptions o = load;
  o.tp = tp;
  o.threads = tp * threads;
  o.max_sequences = batch;
  o.max_length = context + repeats + 4;
  o.device.device = Device::kCpu;
  return o;
}

std::vector<double> decode_times(StepRunner& runner, const PlanOptions& options, SentBytes* sent) {
  constexpr int32_t kFirst = 2;  // steps that warm caches
  Sequences sequences(runner, options.batch, options.context + options.repeats + 4);
  sequences.prefill(options.context);
  std::vector<double> times;
  for (int32_t i = 0; i < kFirst; ++i) sequences.decode();
  for (int32_t i = 0; i < options.repeats; ++i) times.push_back(sequences.decode());
  if (sent) *sent = sequences.sent();
  return times;
}

double undisturbed(std::vector<double> times) {
  std::ranges::sort(times);
  return times.at(times.size() / 10);
}

Planner::Planner(const PlanOptions& options, StageLog& log) : options_(options), sizes_(sizes_of(options)) {
  const LoadOptions load = load_options(options.loading(1));
  std::vector<onnx::SourceFile> files;
  const Graph graph = import_logged(load, files, log);
  auto recognised = recognise_logged(graph, load, log);
  if (const auto* plain = std::get_if<ServedPlain>(&recognised))
    throw Error(Code::kUnsupported,
                "the model is served plain, by one rank, so it has no plan: " + plain->reason);
  model_ = std::get<DecoderModel>(std::move(recognised));
  programs_ =
      std::make_unique<RankPrograms>(*model_, compile_options(terms_for(facts_of(*model_), load, false)));
  whole_ = lower(1, 1, 1);
  if (options.ranks == 1) return;
  const std::vector<int32_t> ends = {0, options.ranks - 1};
  const RankPrograms::Ranks lowered = programs_->lower(options.ranks, options.machine_ranks, ends);
  limits_ = cut_limits(lowered.programs[0], lowered.programs[1], lowered.constants);
  check_limits(limits_, options.ranks);
}

void Planner::measure(StageLog& log) {
  measure_rank(log);
  const bool has_machines = options_.ranks > options_.machine_ranks;
  between_ = has_machines ? measure_link(options_.between, "socket", true, 2) : inside(options_.ranks);
}

const LinkRates& Planner::inside(int32_t machine_ranks) const {
  const int32_t busy = std::clamp(machine_ranks * options_.threads, 2, available_cpus() + 1);
  const auto known = inside_.find(busy);
  if (known != inside_.end()) return known->second;
  return inside_[busy] = measure_link(options_.inside, "local", false, busy);
}

void Planner::measure_rank(StageLog& log) {
  ServeOptions options = options_.loading(1);
  options.device.trace_events = 1 << 14;
  const LoadedRunner loaded = load_runner(load_options(options), log);
  auto& runner = dynamic_cast<RaggedRunner&>(*loaded.runner);
  const std::vector<double> steps = decode_times(runner, options_);
  // The profile's means hold what other programs took; of them only each phase's share counts.
  const double step = undisturbed(steps) / 1e3;
  const double mean =
      std::accumulate(steps.begin(), steps.end(), 0.0) / 1e3 / static_cast<double>(steps.size());
  const Program& program = runner.program();
  std::vector<double> by_phase(program.phases.size());
  for (const PhaseProfile& p : step_profile(runner.timeline(), program, options_.repeats, sizes_))
    by_phase[at(p.phase)] = (p.run_ms + p.wait_ms) / 1e3 / p.times * step / mean;
  for (const Instance& instance : unroll(program)) seconds_.push_back(by_phase[at(instance.phase)]);
  host_ = std::max(0.0, step - std::accumulate(seconds_.begin(), seconds_.end(), 0.0));
}

RankPrograms::Ranks Planner::lower(int32_t count, int32_t ranks, int32_t machine_ranks) const {
  std::vector<int32_t> which(at(count));
  std::iota(which.begin(), which.end(), 0);
  return programs_->lower(ranks, machine_ranks, which);
}

ReadRates Planner::read_rates(int32_t ranks) const {
  const int32_t here = std::clamp(available_cpus() / options_.threads, 1, ranks);
  if (const auto known = rates_.find(here); known != rates_.end()) return known->second;
  const double alone = read_rate(options_.threads);
  const double shared = here == 1 ? alone : read_rate(options_.threads * here) / here;
  return rates_[here] = {alone, std::min(alone, shared)};
}

Planner::Row Planner::row(int32_t ranks, int32_t machine_ranks) const {
  const bool by_events = ranks <= kEvents;
  const RankPrograms::Ranks lowered = lower(by_events ? ranks : 1, ranks, machine_ranks);
  std::vector<SizedProgram> programs;
  for (const Program& program : lowered.programs) programs.emplace_back(program, sizes_);
  // Those of a machine that have their processors at the same time.
  const int32_t running = std::clamp(options_.cores / options_.threads, 1, std::min(ranks, machine_ranks));
  const RankPlacement placement{machine_ranks, running, inside(std::min(ranks, machine_ranks)), between_};
  const PhaseCosts costs({whole_.programs[0], sizes_}, seconds_, read_rates(running));
  Row row{.ranks = ranks, .plan = plan_by_formula(programs[0], costs, placement)};
  if (by_events) {
    row.formula = row.plan.seconds + host_;
    row.plan = plan_by_events(programs, costs, placement);
  }
  row.seconds = row.plan.seconds + host_;
  row.weights = weight_bytes(lowered.programs[0]);
  row.inboxes = inbox_bytes(lowered.programs[0]);
  return row;
}

std::vector<int32_t> Planner::numbers() const {
  const int32_t machine = std::min(options_.ranks, options_.machine_ranks);
  std::vector<int32_t> numbers;
  for (int32_t n = 1; n < machine; n *= 2) numbers.push_back(n);
  for (int32_t n = machine; n < options_.ranks; n *= 2) numbers.push_back(n);
  numbers.push_back(options_.ranks);
  return numbers;
}

}  // namespace ark
