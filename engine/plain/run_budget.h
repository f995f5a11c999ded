// What one run of a plain graph may cost. What it costs may be a number in the file or an input: trips of a loop, a
// window, the length of a transform.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/ir/graph.h"
#include "base/ir/kernel.h"

namespace ark {

// 0: by what the caller hands over, the model's weights and its inputs (limits_for).
struct RunLimits {
  int64_t work = 0;   // multiply-adds of plain kernels, about (base/ir/work.h)
  int64_t bytes = 0;  // of tensors at once, without weights and inputs
};

// What the file has stored, subgraphs included.
struct Weights {
  double elements = 0, bytes = 0;
};
Weights weights_of(const Graph& graph);

// A second's work for whoever brings nothing; each weight may meet each number of the input some times, and each of
// both be used for some thousand results that the other does not show. Bytes likewise.
// `runs`: that are made as one.
RunLimits limits_for(const RunLimits& asked, const Weights& weights, std::span<const Tensor> inputs,
                     int64_t runs = 1);

// Of one run. Throws Error(kInvalidArgument) where a limit is passed, Error(kUnavailable) where nobody waits any more;
// who catches it names the node.
class RunBudget {
 public:
  // `stopped`, which may be empty, is asked at every charge, and outlives the budget.
  RunBudget(RunLimits limits, const std::function<bool()>& stopped) : limits_(limits), stopped_(stopped) {}

  void charge(double work);
  // Of a kernel that is about to run; its tiles, too, cost something.
  void charge_call(const Kernel& kernel, const KernelCall& call);
  void look() const;
  // Tensor::empty of what the run may hold, until the last owner lets go, and while there is memory: it is had when it
  // is first written, and where none is left then, the process ends.
  Tensor make(DType type, const Dims& dims);

 private:
  void check_bytes(double more) const;

  const RunLimits limits_;
  const std::function<bool()>& stopped_;
  double work_ = 0;
  std::shared_ptr<std::atomic<int64_t>> held_ = std::make_shared<std::atomic<int64_t>>(0);
};

// For graphs whose sizes follow from their inputs' (`sizes`), before they run. Throw as RunBudget does; check_work
// names the node that takes most.
void check_work(const Graph& graph, const SymbolValues& sizes, const RunLimits& limits);
void check_bytes(double bytes, const RunLimits& limits);

}  // namespace ark
