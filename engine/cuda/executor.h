// The Executor (engine/run/executor.h) whose loop is one persistent kernel on a GPU: all ranks of this process as one
// launch, block b being processor b % P of rank b / P. The same host code runs on CUDA and on the emulator.
#pragma once

#include <memory>

#include "engine/cuda/gpu.h"
#include "engine/cuda/peer_links.h"
#include "engine/cuda/variants.h"
#include "engine/run/executor.h"

namespace ark::cuda {

struct DeviceOptions {
  Numerics numerics = Numerics::kExact;
  int32_t processors = 0;  // per rank; 0: as many as the GPU holds at once
  int32_t groups = 0;      // tiles that share a matrix product's rows of weights; 0: chosen by cost
  std::chrono::microseconds linger{5'000};  // the loop waits so long for the next step before it parks
  bool as_graph = false;                    // launches replay a CUDA graph (LaunchShape::as_graph)
  // Ranks of other launches are reached in their GPUs' memory where they can be: by stores, or by NICs (nic_boxes.h).
  bool peer_links = true;
  // Rows of steps whose instances tell others by what they store (lamport.h), at most. Of ranks that reach each other's
  // memory: of steps whose sums go by words (rank_parts.h); elements of sums of which each adds up a share
  // (rank_shares.h). 0: chosen by cost.
  int32_t told_rows = 0, part_rows = 0;
  int64_t shares_from = 0;
};

// What the start-up log says of a device.
std::string describe(const GpuInfo& info);

class DeviceExecutor : public Executor {
 public:
  // What the compiler made of the loop; after prepare().
  virtual const KernelFacts& kernel_facts() const = 0;
  virtual int32_t processors() const = 0;  // per rank
  virtual int64_t launches() const = 0;
  // How the ranks of the group exchange, by pair; empty where they are of one launch, or were to post.
  virtual std::vector<PairWay> ways() const = 0;
};

// `gpu` may be shared by executors: they park for each other. Takes decoder programs: all ranks in this
// process without groups, which then exchange through the GPU's memory; or one rank with a group, whose peers are
// other executors' ranks and are reached in their GPUs' memory where GPUs reach each other (prepare() is collective
// then), else through the group's memory of the host: direct links by stores of the GPU, posted ones by requests that
// the pumps serve; or several ranks with groups that post by choice. Ranks of other processes must run on GPUs too,
// of any number of processors. A group's pump serves this executor alone: nobody else posts requests of the
// priorities of the program's channels. ExecutorOptions::processors is not used: see DeviceOptions.
std::unique_ptr<DeviceExecutor> make_device_executor(std::shared_ptr<Gpu> gpu, const DeviceOptions& options);

}  // namespace ark::cuda
