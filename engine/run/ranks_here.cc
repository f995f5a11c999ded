#include "engine/run/ranks_here.h"

#include <algorithm>

namespace ark {

int processors_of(int threads, int ranks) { return std::max(1, threads / ranks); }

int RanksHere::threads(int threads, int ranks) const {
  // Where all are here, those that no rank gets count, too: cores have seats for all threads or none.
  return count > 0 && count < ranks ? count * processors_of(threads, ranks) : std::max(1, threads);
}

int RanksHere::node(int rank, int ranks, int threads, const Cores& cores) const {
  return cores.node(count > 0 ? place : rank, of(ranks), this->threads(threads, ranks));
}

std::vector<CpuList> RanksHere::seats(int rank, int own, int ranks, int threads, const Cores& cores) const {
  const std::vector<CpuList> all = cores.seats(this->threads(threads, ranks));
  const auto each = static_cast<std::size_t>(processors_of(threads, ranks));
  const std::size_t first = static_cast<std::size_t>(count > 0 ? place : rank) * each,
                    last = first + static_cast<std::size_t>(own) * each;
  if (last > all.size()) return {};
  return {all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(last)};
}

}  // namespace ark
