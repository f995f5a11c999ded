// What others' tools measure of the same machine, for `ark-bench dma`: perftest's and UCX's, and Open MPI's all-reduce.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dma/bench.h"

namespace ark {

struct ToolRow {
  std::string tool;
  uint64_t bytes = 0;
  double figure = 0;  // us of a message one way, or GB/s of many
  std::string why;    // there is no figure; then bytes is 0
};

// ib_write_lat, ib_write_bw and ucx_perftest between two processes of this machine, a row for each size; one that says
// why where there is none.
std::vector<ToolRow> run_tools(const std::vector<uint64_t>& sizes);

// This program's `ark-bench dma` started by mpirun with so many ranks. Else `why`.
std::vector<dma::ReduceRow> run_mpi(const dma::BenchOptions& options, int32_t ranks, std::string& why);

}  // namespace ark
