// Ranks as processes: rank 0 starts the others or meets those that a launcher has started, tells them the terms, and
// all compare what they have loaded.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/disk_cache.h"
#include "dma/bootstrap.h"
#include "dma/launch.h"
#include "importer/onnx.h"
#include "server/load/members.h"
#include "server/load/terms.h"

namespace ark {

// For all ranks that a launcher has started to come: machines boot, images are fetched.
inline constexpr std::chrono::minutes kLaunchTime{10};

// What a rank has read its model from.
struct ModelSource {
  // Equal for ranks to which a path is one file: the machine, how it is mounted, the path.
  std::string place;
  std::string files;  // what tells them from those that replace them: number, size and time of each
  std::string about;  // path and size, for people
};
ModelSource source_of(const std::filesystem::path& model, const std::vector<onnx::SourceFile>& files);

// What tells one model from another. The ranks of a group must agree, or each would compute with its own.
struct Fingerprint {
  std::string programs;  // SHA-256 of the programs' text
  // SHA-256 over type, dims and samples of every weight's bytes, as they are in the open file.
  std::string weights;
  ModelSource source = {};
};
Fingerprint fingerprint_of(const Compiled& compiled);
// Fingerprint::weights; nulls are passed over.
std::string samples_of(const std::vector<ConstantPtr>& constants);

// Collective. `error`: why this rank could not load the model, or empty. Throws Error(kUnavailable) on all ranks,
// naming the one that has an error, or whose model differs from rank 0's, and what both have read.
void agree_on_model(dma::Bootstrap& bootstrap, const Fingerprint& own, const std::string& error,
                    dma::Deadline deadline);

// The group that a launcher has started this process for; null if it was started alone, or as the only one. Throws
// Error as Environment::from_process.
const dma::Environment* launched_group(const std::filesystem::path& key_file);

// Rank 0's view of processes that are one model together.
class RankGroup {
 public:
  // Collective: the others run run_rank_process.
  RankGroup(const dma::Environment& environment, dma::WatchOptions watch, std::chrono::seconds patience);
  // Starts them: this program again, with the same arguments.
  RankGroup(int ranks, dma::WatchOptions watch);

  std::span<const Member> members() const { return members_; }
  // Ends the others, who say why. Before run().
  void refuse(const std::string& why);
  // Once.
  std::shared_ptr<RaggedRunner> run(Compiled compiled, const Fingerprint& fingerprint,
                                    const LaunchTerms& terms, std::shared_ptr<cuda::Gpu> gpu,
                                    PackedHook on_packed);

 private:
  std::unique_ptr<dma::RankProcesses> processes_;
  std::unique_ptr<dma::Bootstrap> bootstrap_;
  std::vector<Member> members_;
};

// Where a dead rank only means a pause, one that is stopped is given up sooner.
inline constexpr dma::WatchOptions kSupervisedWatch{.silence = std::chrono::milliseconds(2000)};

// A rank process but the first: loads `model` by the terms of rank 0, runs until that ends, and returns the exit code.
// `needs_gpu`: fails at once where there is none, before anybody is met. `cache`: as of choose_gpu. `on_met`: of a
// supervised rank, which another process of this machine has started and starts again.
int run_rank_process(const dma::Environment& environment, const std::filesystem::path& model, bool needs_gpu,
                     const std::shared_ptr<const DiskCache>& cache, const std::function<void()>& on_met = {});

}  // namespace ark
