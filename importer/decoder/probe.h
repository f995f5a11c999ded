// Evaluates what does not depend on tokens or caches (masks, positions, rotary angles, sizes) at concrete
// steps.
#pragma once

#include <map>
#include <unordered_map>

#include "importer/decoder/roles.h"

namespace ark::decoder {

// An unpadded step: every row of the batch has `past` cached tokens and gets `sequence` new ones.
struct Step {
  int64_t batch = 1, sequence = 1, past = 0;
  auto operator<=>(const Step&) const = default;
  int64_t total() const { return past + sequence; }
};

// How deep evaluations of one value nest, each level some hundred bytes of stack: far more than masks need.
class Depth {
 public:
  Depth(int& depth, const Graph& graph, ValueId id);  // throws Refusal at the limit
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  int& depth_;
};

class Probe {
 public:
  // Both must outlive the probe.
  Probe(const Graph& graph, const Roles& roles) : graph_(graph), roles_(roles) {}

  // The value at `step`, memoised: other inputs as step_input() has them.
  // Throws Refusal naming the node that cannot be evaluated (also where the step is beyond the file's
  // tables).
  Tensor value(ValueId id, const Step& step);
  // The step as this file can have it: fixed sizes replace those asked for.
  Step possible(Step step) const;
  // Drops memoised values of all steps.
  void forget() {
    memo_.clear();
    measured_.clear();
    held_ = 0;
  }

 private:
  Tensor input(std::size_t index, const Step& step);
  void hold(const std::string& at, DType type, const Dims& dims);  // throws Exhausted beyond the budget
  std::vector<Tensor> run(const Node& node, const Step& step);
  std::optional<Tensor> gather_rows(const Node& node, const Step& step);
  std::optional<Tensor> slice_constant(const Node& node, const Step& step);
  void count_unpacked(const Node& node);
  Node concrete(const Node& node, const Step& step) const;

  const Graph& graph_;
  const Roles& roles_;
  std::map<Step, std::unordered_map<ValueId, Tensor>> memo_;
  std::map<Step, SymbolValues> measured_;  // sizes that only data tell, of what was computed
  int depth_ = 0;
  int64_t work_ = 0;      // elements computed so far
  int64_t unpacked_ = 0;  // elements of quantized constants that became f32
  int64_t held_ = 0;      // bytes of what is remembered, a budget against graphs built to exhaust it
};

}  // namespace ark::decoder
