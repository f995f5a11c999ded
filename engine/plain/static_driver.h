// The static driver: a graph all of whose sizes follow from its inputs' sizes, as a Program run by an executor.
//
// A program is compiled and its memory bound for the sizes of a run; later runs that fit take it again. A
// size that has varied gets room up to the next power of two, so that a growing cache binds anew only
// log(size) times. The kernels are the dynamic driver's, so the outputs are equal bit for bit.
#pragma once

#include <list>
#include <memory>
#include <span>
#include <vector>

#include "engine/compile.h"
#include "engine/plain/run_budget.h"
#include "engine/run/executor.h"

namespace ark {

struct StaticOptions {
  int32_t processors = 1;
  bool lockstep = false;       // the oracle executor instead of the loop
  std::size_t most_bound = 4;  // programs kept; the one used longest ago goes first
  RunLimits limits;            // of each run
  int32_t trace_events = 0;    // as of ExecutorOptions
};

class StaticDriver {
 public:
  // Keeps `graph` by reference. Throws Error(kUnsupported) naming the first node whose size depends on data
  // or that no kernel runs.
  explicit StaticDriver(const Graph& graph, StaticOptions options = {});
  ~StaticDriver();

  // `inputs` in the order of graph.inputs. Throws Error(kInvalidArgument) as DynamicDriver::run does;
  // Error(kUnavailable) with the kernel's message where values (an index) do not fit. What a run will take is known
  // from the sizes: beyond the limits none begins.
  std::vector<Tensor> run(std::span<const Tensor> inputs);

  // Of the program that ran last, of which there must be one.
  Timeline timeline();
  const Program& program() const;

  // Programs compiled so far.
  int64_t bindings() const { return compiled_; }

 private:
  struct Bound;
  Bound& bound_for(const SymbolValues& sizes, int64_t most_bytes);
  // What a program is compiled for, so that `sizes` fit.
  SymbolValues room_for(const SymbolValues& sizes) const;
  std::vector<Tensor> run_step(Bound& bound, const SymbolValues& sizes, std::span<const Tensor> inputs);

  const Graph& graph_;
  const StaticOptions options_;
  const Weights stored_;
  SymbolValues last_;  // sizes of the run before
  std::set<std::string, std::less<>> varying_;
  // All programs read the same weights: which they are does not depend on the sizes.
  std::unique_ptr<WeightStore> weights_;
  std::list<Bound> bound_;  // latest first
  int64_t compiled_ = 0;
};

}  // namespace ark
