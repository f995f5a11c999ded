// Where the threads of this process's ranks belong, among those of other processes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/cores.h"

namespace ark {

// Processors of each of so many ranks with so many threads together.
int processors_of(int threads, int ranks);

// Which of a program's ranks share the processors that this process may use: others are on other machines, or have
// processors of their own there. In what follows `threads` are those of all `ranks`, here or not.
struct RanksHere {
  int32_t count = 0;  // 0: all of them
  int32_t place = 0;  // of this process's rank among them

  int32_t of(int32_t all) const { return count > 0 ? count : all; }
  // Theirs alone.
  int threads(int threads, int ranks) const;
  // Cores::node of one of this process's ranks.
  int node(int rank, int ranks, int threads, const Cores& cores = Cores()) const;
  // Cores::seats of the threads of `own` ranks of this process, from `rank` on; empty: nobody has one.
  std::vector<CpuList> seats(int rank, int own, int ranks, int threads, const Cores& cores = Cores()) const;
};

}  // namespace ark
