#include "engine/lower/repeat.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/index.h"

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
             std::to_string(w.block);
      }
      for (const ValId v : b.dims) s += ":" + std::to_string(v);
    }
    s += ')';
  }
  return s;
}

struct Run {
  int64_t first = 0, count = 0, trips = 1;
  int64_t saved() const { return (trips - 1) * count; }
};

// Shorter runs (the products of q, k and v) stay as they are: trips of one phase wait for each other.
constexpr int64_t kMinPhases = 4;

// The run within [begin, end) that saves most phases; of equals the shortest period, then the first.
Run best_run(const std::vector<int>& signatures, int64_t begin, int64_t end) {
  Run best;
  for (int64_t period = kMinPhases; period * 2 <= end - begin; ++period) {
    int64_t equal = 0;  // phases in a row that equal the one a period earlier
    for (int64_t i = begin + period; i <= end; ++i) {
      if (i < end && signatures[i] == signatures[i - period]) {
        ++equal;
        continue;
      }
      const Run run{i - equal - period, period, equal / period + 1};
      if (run.trips > 1 && run.saved() > best.saved()) best = run;
      equal = 0;
    }
  }
  return best;
}

void find_runs(const std::vector<int>& signatures, int64_t begin, int64_t end, std::vector<Run>& runs) {
  const Run run = best_run(signatures, begin, end);
  if (run.trips < 2) return;
  find_runs(signatures, begin, run.first, runs);
  runs.push_back(run);
  find_runs(signatures, run.first + run.count * run.trips, end, runs);
}

// The phases of the first trip, with operands that differ between trips moved into the table.
Repeat fold(const std::vector<Phase>& phases, const Run& run, std::vector<Phase>& folded) {
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
  std::map<std::string, int> numbers;
  std::vector<int> signatures;
  for (const Phase& phase : program.phases) {
    signatures.push_back(
        numbers.try_emplace(signature(program, phase), static_cast<int>(numbers.size())).first->second);
  }
  std::vector<Run> runs;
  const auto phases = static_cast<int64_t>(program.phases.size());
  find_runs(signatures, 0, phases, runs);
  std::vector<Phase> folded;
  int64_t next = 0;
  for (const Run& run : runs) {
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
