// The dynamic driver: runs an imported graph operator by operator through the kernel library.
//
// For data-dependent shapes, control flow, and as the oracle of everything that is compiled. Symbols are
// bound from the inputs' sizes, and from outputs whose size only the data tells, as they appear.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/ir/graph.h"
#include "base/ir/kernel.h"
#include "engine/plain/parallel_for.h"
#include "engine/plain/run_budget.h"

namespace ark {

class DynamicDriver {
 public:
  // Keeps `graph` by reference. Throws Error(kUnsupported) naming the first node that has no kernel.
  // Weights are read at construction and stay in memory. `limits`: of each run.
  explicit DynamicDriver(const Graph& graph, ParallelFor parallel = {}, RunLimits limits = {});

  // `inputs` in the order of graph.inputs; checks types, ranks and sizes against the declared shapes.
  // Throws Error(kInvalidArgument) naming input or node and the shapes that do not fit, or
  // the limit that was passed; Error(kUnavailable) soon after `stopped` says so, from any of the run's threads.
  // `runs`: what so many runs may take, which the caller makes as one.
  std::vector<Tensor> run(std::span<const Tensor> inputs, const std::function<bool()>& stopped = {},
                          int64_t runs = 1) const;

 private:
  struct Frame;  // one activation of the graph: values and symbols
  std::vector<Tensor> run_frame(Frame& frame) const;
  void take_inputs(Frame& frame, std::span<const Tensor> inputs) const;
  void run_node(Frame& frame, const Node& node) const;
  void run_if(Frame& frame, const Node& node) const;
  void run_loop(Frame& frame, const Node& node) const;
  void run_scan(Frame& frame, const Node& node) const;
  std::vector<Tensor> run_body(Frame& outer, const Node& node, std::size_t index,
                               std::vector<Tensor> inputs) const;
  void call_kernel(Frame& frame, const Node& node) const;
  void set_output(Frame& frame, ValueId id, Tensor result) const;

  const Graph& graph_;
  ParallelFor parallel_;
  const RunLimits limits_;
  const Weights weights_;
  std::vector<Tensor> constants_;      // by value id; empty where the value is no constant
  std::vector<std::size_t> last_use_;  // by value id: index of the last node that reads it
  std::vector<std::vector<std::unique_ptr<DynamicDriver>>> bodies_;  // by node: drivers of its subgraphs
};

}  // namespace ark
