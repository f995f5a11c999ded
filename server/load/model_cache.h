// Models as they are once compiled and packed, on disk (base/disk_cache.h): another start with the same terms neither
// imports, compiles nor packs, and computes the same.
//
// Two kinds of entries. KEY.model: what importer and compiler gave, and the stamps of all files that they read; KEY is
// of this very build, the instruction set, where the model lies and LaunchTerms. WEIGHTS.rankN: what the WeightStore of
// rank N holds; WEIGHTS is of KEY and those stamps. A file with another stamp, or that is gone, makes both useless.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/disk_cache.h"
#include "dma/region.h"
#include "server/load/compiled_model.h"

namespace ark {

struct LoadOptions;

// Where the options want it; null if they leave it to others (compiled kernels alone are kept then).
std::shared_ptr<const DiskCache> disk_cache_of(const LoadOptions& options);

class ModelCache {
 public:
  // `model`: the ONNX file. `terms`: as compile_model takes them; what does not bear on it is not looked at.
  ModelCache(std::shared_ptr<const DiskCache> disk, const std::filesystem::path& model,
             const LaunchTerms& terms);

  // All but graph, specs, constants and weights; nothing where it is not kept or the files are others now.
  std::optional<CompiledModel> find() const;
  // Reads the weights of a rank, by so many threads, into a node's memory (Cores::node). False where they are not kept.
  bool read_weights(CompiledModel& model, int rank, int threads, int node) const;

  bool is_on() const { return !key_.empty(); }
  // Whether it is worth while: not what was compiled in want of memory.
  bool keeps(const CompiledModel& model) const { return is_on() && !model.compiled.lacked_memory; }
  std::string model_entry() const { return key_ + ".model"; }
  std::string weights_entry(const std::vector<onnx::SourceFile>& files, int rank) const;

 private:
  friend class CacheWriter;
  bool has_same_files(const std::vector<onnx::SourceFile>& files) const;

  std::shared_ptr<const DiskCache> disk_;
  std::filesystem::path model_;
  std::string key_;  // empty: nothing is kept
};

// Keeps a model, by a thread of its own that stands behind all others.
class CacheWriter {
 public:
  // `keeps_model`: else only weights, where another process keeps the rest. `finishes`: what has been begun is kept,
  // however long that takes; else it ends with this object.
  CacheWriter(ModelCache cache, const CompiledModel& model, bool keeps_model, bool finishes);
  ~CacheWriter();
  CacheWriter(const CacheWriter&) = delete;
  CacheWriter& operator=(const CacheWriter&) = delete;

  // Takes weights of a rank, which may be released from then on.
  PackedHook hook();
  // Once, after all of them.
  void start();

 private:
  struct Rank {
    std::string entry;
    dma::Memory arena;
  };
  void write() const;

  ModelCache cache_;
  bool finishes_;
  std::string model_;  // payload of its entry, or empty
  std::vector<onnx::SourceFile> files_;
  std::vector<std::string> rank_entries_;  // of all ranks
  std::vector<Rank> ranks_;
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

}  // namespace ark
