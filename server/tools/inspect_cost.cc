// Stage cost: what a step of the model's loop would take on a GPU, phase by phase. Needs neither a GPU nor weights.
#include <algorithm>
#include <cstdio>
#include <fstream>

#include "base/error.h"
#include "base/index.h"
#include "engine/cuda/cost/replay.h"
#include "server/json.h"
#include "server/tools/inspect_stages.h"

namespace ark {
namespace {

using cuda::cost::Counts;
using cuda::cost::PhaseCost;
using cuda::cost::Rates;
using cuda::cost::StepMachine;
using cuda::cost::StepShape;
using cuda::cost::StepTables;

struct Replayed {
  const Rates& rates;
  StepMachine machine;
  int32_t gpus;
  cuda::cost::StepCost cost;
};

Replayed replay_of(Inspection& inspection) {
  const CostOptions& asked = inspection.cost();
  const Compiled& compiled = inspection.compiled();
  const LaunchTerms terms = inspection.launch_terms();
  StepShape shape;
  for (int32_t s = 0; s < asked.batch; ++s)
    shape.sequences.push_back({std::max(1, asked.prompt), asked.prompt > 0 ? 0 : asked.context});
  const int32_t length = shape.sequences[0].count + shape.sequences[0].cached;
  if (length > terms.limits.max_length)
    throw Error(Code::kUsage, "--context, --prompt: " + std::to_string(length) +
                                  " tokens of a sequence; the model takes " +
                                  std::to_string(terms.limits.max_length));
  const Rates& rates = cuda::cost::rates_of(asked.arch);
  const auto ranks = static_cast<int32_t>(compiled.programs.size());
  const int32_t gpus = asked.gpus > 0 ? asked.gpus : ranks;
  if (ranks % gpus != 0)
    throw Error(Code::kUsage, "--gpus " + std::to_string(gpus) + ": each has as many ranks; --tp is " +
                                  std::to_string(ranks));
  const StepMachine machine =
      cuda::cost::machine_of(rates.processors, rates.shared_per_block, rates.l2_bytes, ranks / gpus);
  std::vector<RankSetup> setups;
  for (std::size_t r = 0; r < compiled.programs.size(); ++r)
    setups.push_back({&compiled.programs[r], &compiled.bindings[r], nullptr, nullptr});
  RaggedOptions options = ragged_options(terms, nullptr);
  options.limits.pages = 1;  // their number is no cost
  const StepTables tables(setups, options, machine, terms.numerics, asked.groups, shape);
  StepMachine used = machine;
  used.stages = tables.stages();
  return {rates, used, gpus, cuda::cost::replay(tables, rates)};
}

void save_trace(const Inspection& inspection, const cuda::cost::StepCost& cost) {
  if (inspection.cost().trace.empty()) return;
  std::ofstream out(inspection.cost().trace);
  if (!(out << perfetto_json(cost.timeline)).flush())
    throw Error(Code::kOs, "--trace: cannot write " + escaped(inspection.cost().trace));
}

// "GPU, step" in words.
std::string step_text(const CostOptions& asked, const Replayed& r) {
  const std::string each = asked.prompt > 0 ? " of " + std::to_string(asked.prompt) + " tokens"
                                            : ", " + std::to_string(asked.context) + " tokens cached of each";
  const std::string gpus = r.gpus > 1 ? std::to_string(r.gpus) + " x " : "";
  return std::string(r.rates.arch) + ", " + gpus + std::string(r.rates.card) + ": " +
         std::to_string(r.machine.processors) + " processors of a rank, " + std::to_string(r.machine.stages) +
         " stages of weights; " + (asked.prompt > 0 ? "prompts" : "sequences") + ": " +
         std::to_string(asked.batch) + each;
}

Json json_of(const Counts& counts) {
  return {{"loads", counts.loads},
          {"fences", counts.fences},
          {"atomics", counts.atomics},
          {"barriers", counts.barriers}};
}

int percent(double floor_us, double us) { return us > 0 ? static_cast<int>(100 * floor_us / us + 0.5) : 0; }

}  // namespace

std::string cost_text(Inspection& inspection) {
  const Replayed r = replay_of(inspection);
  save_trace(inspection, r.cost);
  const std::vector<std::string>& names = r.cost.timeline.phases[0];
  char line[160];
  std::string text =
      step_text(inspection.cost(), r) + "\n" +
      "us: of the step, all times; % of floor: what its bytes take at the memory's peak; counts: of the "
      "block that is through\nlast, each time\n"
      "times       us  %floor       KiB  loads fences atomics barriers block  phase\n";
  for (const PhaseCost& p : r.cost.phases) {
    std::snprintf(line, sizeof line, "%5d %8.2f %6d%% %9lld %6d %6d %7d %8d %5d  ", p.times, p.us,
                  percent(p.floor_us, p.us), static_cast<long long>(p.bytes >> 10), p.counts.loads,
                  p.counts.fences, p.counts.atomics, p.counts.barriers, p.critical_block);
    text += line + escaped(names[at(p.phase)]) + "\n";
  }
  const Counts all = r.cost.most();
  std::snprintf(
      line, sizeof line,
      "step  %8.2f us, byte floor %.2f us (%d%%); along it %d loads, %d fences, %d atomics, %d barriers\n",
      r.cost.us, r.cost.floor_us, percent(r.cost.floor_us, r.cost.us), all.loads, all.fences, all.atomics,
      all.barriers);
  text += line;
  text += "rates:\n";
  for (const cuda::cost::RateRow& row : cuda::cost::rows_of(r.rates)) {
    std::snprintf(line, sizeof line, "  %-36s %9.7g %-5s ", std::string(row.name).c_str(), row.rate.value,
                  std::string(row.unit).c_str());
    text += line + std::string(name_of(row.rate.source)) + "\n";
  }
  return text;
}

Json cost_json(Inspection& inspection) {
  const Replayed r = replay_of(inspection);
  save_trace(inspection, r.cost);
  Json phases = Json::array(), rates = Json::array();
  for (const PhaseCost& p : r.cost.phases)
    phases.push_back({{"phase", r.cost.timeline.phases[0][at(p.phase)]},
                      {"number", p.phase},
                      {"times", p.times},
                      {"us", p.us},
                      {"floor_us", p.floor_us},
                      {"bytes", p.bytes},
                      {"block", p.critical_block},
                      {"counts", json_of(p.counts)}});
  for (const cuda::cost::RateRow& row : cuda::cost::rows_of(r.rates))
    rates.push_back({{"name", row.name},
                     {"unit", row.unit},
                     {"value", row.rate.value},
                     {"source", name_of(row.rate.source)}});
  return {{"arch", r.rates.arch},
          {"card", r.rates.card},
          {"step", step_text(inspection.cost(), r)},
          {"us", r.cost.us},
          {"floor_us", r.cost.floor_us},
          {"counts", json_of(r.cost.most())},
          {"phases", std::move(phases)},
          {"rates", std::move(rates)}};
}

}  // namespace ark
