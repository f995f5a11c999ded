// What passes use to look at graphs.
#pragma once

#include <optional>
#include <vector>

#include "base/ir/graph.h"
#include "base/ir/keys.h"

namespace ark::passes {

// The node of kind `op` that produces `id`, or null.
inline const Node* made_by(const Graph& graph, ValueId id, Op op) {
  const Node* node = graph.producer(id);
  return node && node->op == op ? node : nullptr;
}

// The number in a constant of one element.
inline std::optional<double> number(const Graph& graph, ValueId id) {
  if (id == kNoValue) return std::nullopt;
  const ConstantPtr& c = graph.value(id).constant;
  if (!c || c->size() != 1 || (!is_floating(c->dtype) && !is_integer(c->dtype))) return std::nullopt;
  return materialise(*c).real(0);
}

// Whether a constant holds no other number. Reads them all.
inline bool is_all(const Constant& c, double wanted) {
  const Tensor t = materialise(c);
  for (int64_t i = 0; i < t.size(); ++i)
    if (t.real(i) != wanted) return false;
  return true;
}

// Equal up to what 16-bit constants lose.
inline bool about(const Graph& graph, ValueId id, double wanted) {
  const auto have = number(graph, id);
  if (!have) return false;
  const DType type = graph.value(id).dtype;
  const double tolerance = type == DType::kF16 ? 2e-3 : type == DType::kBF16 ? 1e-2 : 1e-5;
  const double difference = *have - wanted, magnitude = wanted < 0 ? -wanted : wanted;
  return !(difference > tolerance * magnitude) && !(-difference > tolerance * magnitude);
}

// How often each value is read: by nodes, subgraphs and as a graph output.
inline std::vector<int> use_counts(const Graph& graph) {
  std::vector<int> counts(graph.values.size(), 0);
  const auto consumers = graph.consumers();
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = static_cast<int>(consumers[i].size());
  for (const ValueId id : graph.outputs) ++counts[id];
  return counts;
}

// The input of a two-operand node that is not `known`; kNoValue if neither is, or both are.
inline ValueId other_input(const Node& node, ValueId known) {
  if (node.inputs.size() != 2 || node.inputs[0] == node.inputs[1]) return kNoValue;
  if (node.inputs[0] == known) return node.inputs[1];
  return node.inputs[1] == known ? node.inputs[0] : kNoValue;
}

// The node becomes another operator that makes the same output.
inline void rewrite(Node& node, Op op, std::vector<ValueId> inputs, Attributes attributes = {}) {
  node.op = op;
  node.inputs = std::move(inputs);
  node.attributes = std::move(attributes);
}

inline bool is_identity(const std::vector<int64_t>& perm) {
  for (std::size_t i = 0; i < perm.size(); ++i)
    if (perm[i] != static_cast<int64_t>(i)) return false;
  return true;
}

// True if `node` reduces the last axis only, keeping it with size 1.
inline bool over_last_axis(const Graph& graph, const Node& node) {
  const auto& shape = graph.value(node.inputs[0]).shape;
  if (!shape || shape->empty() || !node.attributes.has(key::kAxes) ||
      !node.attributes.get_or(key::kKeepdims, 1))
    return false;
  const auto& axes = node.attributes.get(key::kAxes);
  return axes.size() == 1 && axes[0] == static_cast<int64_t>(shape->size()) - 1;
}

// True if `id` is a constant vector of the size of x's last axis: what scales and shifts rows.
inline bool is_row_constant(const Graph& graph, ValueId id, ValueId x) {
  const Value& v = graph.value(id);
  const auto& shape = graph.value(x).shape;
  return v.constant && v.constant->dims.size() == 1 && shape && !shape->empty() &&
         shape->back().is_constant(v.constant->dims[0]);
}

// One value in place of another, for many at once.
class Aliases {
 public:
  explicit Aliases(const Graph& graph) : to_(graph.values.size()) {
    for (std::size_t i = 0; i < to_.size(); ++i) to_[i] = static_cast<ValueId>(i);
  }
  void set(ValueId from, ValueId to) {
    to_[from] = (*this)(to);
    any_ = true;
  }
  ValueId operator()(ValueId id) const {
    return id == kNoValue || static_cast<std::size_t>(id) >= to_.size() ? id : to_[id];
  }
  bool any() const { return any_; }
  void apply(Node& node) const {
    for (ValueId& id : node.inputs) id = (*this)(id);
    for (auto& subgraph : node.subgraphs)
      for (auto& [outer, inner] : subgraph->captured) outer = (*this)(outer);
  }
  void apply(Graph& graph) const {
    for (Node& node : graph.nodes) apply(node);
    for (ValueId& id : graph.outputs) id = (*this)(id);
  }

 private:
  std::vector<ValueId> to_;
  bool any_ = false;
};

}  // namespace ark::passes
