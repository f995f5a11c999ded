// A kernel's launch as the one node of a CUDA graph: built once, replayed with another parameter each time.
// What a step costs so is compared with plain launches and with a loop that stays (docs/gpu-results.md).
#pragma once

#include <cstddef>
#include <span>

#include "engine/cuda/driver_context.h"
#include "engine/cuda/gpu.h"

namespace ark::cuda {

class LaunchGraph {
 public:
  // Inside Gate::Work; `driver` outlives this. `parameter`: any of the kernel's. Throws Error(kUnavailable)
  // naming what the driver lacks or refuses; it cannot have cooperative nodes under MPS.
  LaunchGraph(const Driver& driver, DriverFunction function, const LaunchShape& shape,
              std::span<const std::byte> parameter);
  ~LaunchGraph();
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  const LaunchShape& shape() const { return shape_; }
  // Inside Gate::Work. `parameter` is copied.
  void replay(std::span<const std::byte> parameter, DriverStream stream);

 private:
  void build(DriverFunction function, std::span<const std::byte> parameter);
  void release() noexcept;

  const Driver& driver_;
  const GraphApi api_;
  const LaunchShape shape_;
  KernelNode node_{};  // but for the parameter
  DriverGraph graph_ = nullptr;
  DriverGraphNode handle_ = nullptr;
  DriverGraphExec exec_ = nullptr;
};

}  // namespace ark::cuda
