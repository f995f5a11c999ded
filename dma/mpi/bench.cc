#include "dma/mpi/bench.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "dma/mpi/library.h"
#include "dma/mpi/loaded.h"
#include "dma/wait.h"

namespace ark::dma {

std::vector<ReduceRow> run_mpi_reduce_bench(const BenchOptions& options) {
  constexpr int kFirst = 10, kAtLeast = 8;  // sums that warm pages; that are timed
  const LoadedMpi mpi;
  const auto all_reduce = mpi.function<decltype(&ark_mpi_all_reduce)>("ark_mpi_all_reduce");
  const auto all_gather = mpi.function<decltype(&ark_mpi_all_gather)>("ark_mpi_all_gather");
  int rank = 0, ranks = 0;
  LoadedMpi::check("start", mpi.function<decltype(&ark_mpi_begin)>("ark_mpi_begin")(&rank, &ranks));
  std::vector<ReduceRow> rows;
  for (const uint64_t bytes : options.sizes) {
    const std::vector<float> own(bytes / sizeof(float), 1);
    std::vector<float> sum(own.size());
    const auto add = [&] {
      LoadedMpi::check("add up", all_reduce(own.data(), sum.data(), own.size()));
      return steady_ns();
    };
    const int64_t begin = steady_ns();
    for (int i = 0; i < kFirst; ++i) add();
    // All add as often as rank 0 thinks that the time allows.
    const int64_t each = (steady_ns() - begin) / kFirst + 1;
    const int64_t fits =
        std::max<int64_t>(kAtLeast, std::chrono::nanoseconds(options.time_per_row).count() / each);
    std::vector<int64_t> of_ranks(static_cast<std::size_t>(ranks));
    LoadedMpi::check("gather", all_gather(&fits, of_ranks.data(), sizeof fits));
    std::vector<double> micros;
    for (int64_t i = 0, before = steady_ns(); i < of_ranks[0]; ++i) {
      const int64_t now = add();
      micros.push_back(static_cast<double>(now - before) / 1e3);
      before = now;
    }
    ARK_CHECK(sum.back() == static_cast<float>(ranks), "MPI's sum of all ranks is wrong");
    if (rank == 0) rows.push_back({"Open MPI", "", ranks, bytes, percentiles_of(std::move(micros))});
  }
  LoadedMpi::check("end", mpi.function<decltype(&ark_mpi_end)>("ark_mpi_end")());
  return rows;
}

}  // namespace ark::dma
