// MPI's own all-reduce, beside ours (dma/bench.h).
#pragma once

#include <vector>

#include "dma/bench.h"

namespace ark::dma {

// Of the processes that mpirun has started, collective over all of them: each size's sum of f32. Rank 0's times; no
// rows on the others. Ends MPI: once in a process. Throws Error(kUnavailable).
std::vector<ReduceRow> run_mpi_reduce_bench(const BenchOptions& options);

}  // namespace ark::dma
