// Ranks as processes: rank 0 starts the others, tells them the terms, and all compare what they have loaded.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "dma/bootstrap.h"
#include "server/load/terms.h"

namespace ark {

// What tells one model from another. The ranks of a group must agree, or each would compute with its own.
struct Fingerprint {
  std::string programs;  // SHA-256 of the programs' text
  std::string
      weights;  // SHA-256 over type, dims and samples of every weight's bytes, as they are in the open file

  bool operator==(const Fingerprint&) const = default;
};
Fingerprint fingerprint_of(const Compiled& compiled);
// Fingerprint::weights; nulls are passed over.
std::string samples_of(const std::vector<ConstantPtr>& constants);

// Collective. `error`: why this rank could not load the model, or empty. Throws Error(kUnavailable) on all ranks,
// naming the one that has an error, or whose model differs from rank 0's.
void agree_on_model(dma::Bootstrap& bootstrap, const Fingerprint& own, const std::string& error,
                    dma::Deadline deadline);

// Rank 0 of `terms.ranks` processes; the others are this program started again with the same arguments.
std::shared_ptr<RaggedRunner> start_ranks(Compiled compiled, const LaunchTerms& terms,
                                          std::shared_ptr<cuda::Gpu> gpu, dma::WatchOptions watch);

// A rank process that start_ranks has started: loads `model` by the terms of rank 0, runs until that ends, and
// returns the exit code. `needs_gpu`: fails at once where there is none, before anybody is met.
int run_rank_process(const std::filesystem::path& model, bool needs_gpu);

}  // namespace ark
