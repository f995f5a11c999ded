#include "base/periodic_runs.h"

#include <algorithm>
#include <map>

namespace ark {
namespace {

constexpr int64_t kLongest = 4096;  // items of a layer: bounds the time that a long sequence takes

int64_t saved(const PeriodicRun& run) { return (run.trips - 1) * run.count; }

// The run within [begin, end) that saves most items; of equals the shortest period, then the first.
PeriodicRun best_run(const std::vector<int>& items, int64_t shortest, int64_t begin, int64_t end) {
  PeriodicRun best;
  for (int64_t period = shortest; period <= std::min(kLongest, (end - begin) / 2); ++period) {
    int64_t equal = 0;  // items in a row that equal the one a period earlier
    for (int64_t i = begin + period; i <= end; ++i) {
      if (i < end && items[i] == items[i - period]) {
        ++equal;
        continue;
      }
      const PeriodicRun run{i - equal - period, period, equal / period + 1};
      if (run.trips > 1 && saved(run) > saved(best)) best = run;
      equal = 0;
    }
  }
  return best;
}

void find_runs(const std::vector<int>& items, int64_t shortest, int64_t begin, int64_t end,
               std::vector<PeriodicRun>& runs) {
  const PeriodicRun run = best_run(items, shortest, begin, end);
  if (run.trips < 2) return;
  find_runs(items, shortest, begin, run.first, runs);
  runs.push_back(run);
  find_runs(items, shortest, run.first + run.count * run.trips, end, runs);
}

}  // namespace

std::vector<PeriodicRun> periodic_runs(const std::vector<std::string>& items, int64_t shortest) {
  std::map<std::string, int> numbers;
  std::vector<int> numbered;
  for (const std::string& item : items)
    numbered.push_back(numbers.try_emplace(item, static_cast<int>(numbers.size())).first->second);
  std::vector<PeriodicRun> runs;
  find_runs(numbered, shortest, 0, static_cast<int64_t>(numbered.size()), runs);
  return runs;
}

}  // namespace ark
