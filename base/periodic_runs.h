// Stretches of a sequence that repeat: how layers are found in programs and in pictures of graphs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ark {

// Items [first, first + count) stand `trips` times in a row.
struct PeriodicRun {
  int64_t first = 0, count = 0, trips = 1;
};

// Disjoint, ascending, of two trips and more: where most items are saved first, then what lies between. Periods of
// fewer than `shortest` items, and very long ones, are left alone.
std::vector<PeriodicRun> periodic_runs(const std::vector<std::string>& items, int64_t shortest);

}  // namespace ark
