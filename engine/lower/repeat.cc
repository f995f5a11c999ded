#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/index.h"
#include "base/periodic_runs.h"
#include "engine/lower/complete.h"

namespace ark {
namespace {

// Equal for phases that may be trips of one phase.
std::string signature(const Program& program, const Phase& phase) {
  std::string s =
      std::to_string(phase.variant) + "/" + std::to_string(phase.grid) + "/" + std::to_string(phase.channel);
  for (const Operand& operand : phase.operands) {
    s += '(';
    if (operand.buffer != kNone) {
      const Buffer& b = program.buffers[operand.buffer];
      s += std::to_string(static_cast<int>(b.kind)) + "," + std::to_string(static_cast<int>(b.dtype)) + "," +
           std::to_string(b.channel);
      if (b.weight != kNone) {
        const WeightUse& w = program.weights[b.weight];
        s += "," + std::to_string(static_cast<int>(w.layout)) + "," + std::to_string(w.panel) + "," +
             std::to_string(w.block) + "," + std::to_string(static_cast<int>(w.terms));
      }
      for (const ValId v : b.dims) s += ":" + std::to_string(v);
    }
    s += ')';
  }
  return s;
}

// Shorter runs (the products of q, k and v) stay as they are: trips of one phase wait for each other.
constexpr int64_t kMinPhases = 4;

// The phases of the first trip, with operands that differ between trips moved into the table.
Repeat fold(const std::vector<Phase>& phases, const PeriodicRun& run, std::vector<Phase>& folded) {
  Repeat repeat{.first = static_cast<PhaseId>(folded.size()),
                .count = static_cast<int32_t>(run.count),
                .trips = static_cast<int32_t>(run.trips)};
  repeat.table.resize(at(run.trips));
  std::map<std::vector<BufferId>, int32_t> slots;  // columns, each stored once
  for (int64_t i = 0; i < run.count; ++i) {
    Phase phase = phases[run.first + i];
    for (std::size_t o = 0; o < phase.operands.size(); ++o) {
      std::vector<BufferId> column;
      for (int64_t trip = 0; trip < run.trips; ++trip) {
        column.push_back(phases[run.first + trip * run.count + i].operands[o].buffer);
      }
      if (std::all_of(column.begin(), column.end(), [&](BufferId b) { return b == column[0]; })) continue;
      const auto [it, is_new] = slots.try_emplace(column, static_cast<int32_t>(slots.size()));
      if (is_new) {
        for (std::size_t trip = 0; trip < column.size(); ++trip) repeat.table[trip].push_back(column[trip]);
      }
      phase.operands[o] = {kNone, it->second};
    }
    folded.push_back(std::move(phase));
  }
  return repeat;
}

}  // namespace

void fold_repeats(Program& program) {
  std::vector<std::string> signatures;
  for (const Phase& phase : program.phases) signatures.push_back(signature(program, phase));
  const auto phases = static_cast<int64_t>(program.phases.size());
  std::vector<Phase> folded;
  int64_t next = 0;
  for (const PeriodicRun& run : periodic_runs(signatures, kMinPhases)) {
    for (; next < run.first; ++next) folded.push_back(program.phases[next]);
    const auto index = static_cast<int32_t>(program.repeats.size());
    program.repeats.push_back(fold(program.phases, run, folded));
    for (int64_t i = 0; i < run.count; ++i) folded[folded.size() - 1 - at(i)].repeat = index;
    next += run.count * run.trips;
  }
  for (; next < phases; ++next) folded.push_back(program.phases[next]);
  program.phases = std::move(folded);
}

}  // namespace ark
