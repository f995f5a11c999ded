// The StepRunner of recognised decoders: compiled programs, their weights and an executor, for ranks that are
// threads of this process or processes of their own.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "dma/bootstrap.h"
#include "dma/preflight.h"
#include "engine/compile.h"
#include "engine/cuda/executor.h"
#include "engine/run/executor.h"
#include "engine/run/runner.h"

namespace ark {

// Called with the weights of each rank of this process once they are packed, before a device takes them.
using PackedHook = std::function<void(int rank, const WeightStore& weights)>;

// Of limits, compiled for: max_tokens, max_rows, page_size, like max_items. Chosen by the caller: max_slots, max_length
// (tokens, > 0), vocabulary, pages (> 0; see settle_pages). The runner sets processors and seats.
struct RaggedOptions : ExecutorOptions {
  int32_t threads = 2;    // of all ranks together; each gets at least one
  bool lockstep = false;  // the oracle instead of the loop
  // Not null: the ranks of this process run on it, as one launch; then threads only pack, and isa is not used.
  std::shared_ptr<cuda::Gpu> gpu;
  cuda::DeviceOptions device;
  // Local ranks: through the pump instead of peer stores (programs with posted links).
  bool force_posted = false;
  PackedHook on_packed;  // may be empty
  std::chrono::milliseconds join_deadline{60'000};
};

// What a runner takes, for the start-up log.
struct RunnerMemory {
  int64_t weights = 0;  // bytes, of the ranks of this process
  int64_t pages = 0;    // keys and values
  int64_t other = 0;    // activations, state
};

class RaggedRunner : public StepRunner {
 public:
  virtual RunnerMemory memory() const = 0;
  virtual std::string_view transport() const = 0;  // what carries the exchange of ranks
  // As they were tried; of ranks in processes.
  virtual std::span<const dma::Pair> pairs() const { return {}; }
  // The kv heads [kv_heads, dim] of one cached token: keys, or values, as their pages hold them. Only while no step
  // is in flight, and
  // with all ranks in this process (else Error(kUnsupported)).
  struct CachedToken {
    int32_t cache = 0;  // index into DecoderModel::caches
    bool values = false;
    int32_t page = 0, at = 0;
  };
  virtual void read_cache(const CachedToken& token, std::span<float> heads) const = 0;
  virtual void write_cache(const CachedToken& token, std::span<const float> heads) = 0;
  virtual Timeline timeline() = 0;             // as of Executor
  virtual const Program& program() const = 0;  // rank 0's
  // Whether the loops hold no threads now.
  virtual bool is_parked() const = 0;
  // The executor, if it is one on a GPU; else null.
  virtual cuda::DeviceExecutor* device() = 0;
};

// Attention work items that a step of so many tokens and sequences can come to: CompileOptions::max_items.
int32_t most_items(int32_t tokens, int32_t sequences);

// Bytes of one page over all caches and all ranks.
int64_t page_bytes(const std::vector<Program>& programs);

// What the ranks of a model take with so many pages, all or one of them; known before anything is allocated.
RunnerMemory memory_of(const Compiled& compiled, int64_t pages, int rank = -1);
// The only place that settles how much is cached: as many pages as `kv_bytes` (all ranks together) hold, but no more
// than all slots can use; max_length shrinks to what the pages hold. Throws Error(kUsage) if not one page fits.
void settle_pages(RunnerLimits& limits, const std::vector<Program>& programs, int64_t kv_bytes);

// All ranks in this process.
std::unique_ptr<RaggedRunner> make_ragged_runner(Compiled compiled, const RaggedOptions& options);

// Rank 0 of a group of processes that have met and all have compiled the same model with the same options.
std::unique_ptr<RaggedRunner> make_ragged_runner(Compiled compiled, const RaggedOptions& options,
                                                 std::unique_ptr<dma::Bootstrap> bootstrap);
// The other ranks: runs steps until rank 0 says that it is over, then returns. Throws Error(kUnavailable)
// naming the rank that died, or what stopped.
void serve_rank(Compiled compiled, const RaggedOptions& options, std::unique_ptr<dma::Bootstrap> bootstrap);

}  // namespace ark
