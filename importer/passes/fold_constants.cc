// What became known since the nodes were emitted: elements, bounds, whole values.
#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"
#include "base/ir/slice_bounds.h"
#include "importer/infer.h"
#include "importer/op_importer.h"
#include "importer/passes/passes.h"

namespace ark::passes {
namespace {

using shape_rules::elements_of;

std::optional<std::vector<Expr>> elements(const Graph& graph, const Node& node, std::size_t i) {
  return i < node.inputs.size() ? elements_of(graph, node.inputs[i]) : std::nullopt;
}

std::optional<std::vector<int64_t>> numbers(const Graph& graph, const Node& node, std::size_t i,
                                            std::size_t count, int64_t fallback, int64_t step) {
  std::vector<int64_t> result;
  if (node.input(i) == kNoValue) {
    for (std::size_t k = 0; k < count; ++k) result.push_back(fallback + static_cast<int64_t>(k) * step);
    return result;
  }
  const auto known = elements_of(graph, node.inputs[i]);
  return known && known->size() == count ? constants_of(*known) : std::nullopt;
}

// A run-time Slice whose bounds are known by now.
bool settle_slice(Graph& graph, Node& node) {
  if (node.attributes.has(key::kStarts)) return false;
  const auto starts = elements(graph, node, 1), ends = elements(graph, node, 2);
  const auto& x = graph.value(node.inputs[0]).shape;
  if (!starts || !ends || !x || ends->size() != starts->size()) return false;
  auto axes = numbers(graph, node, 3, starts->size(), 0, 1),
       steps = numbers(graph, node, 4, starts->size(), 1, 0);
  if (!axes || !steps) return false;
  for (int64_t& a : *axes) {
    if (a < 0) a += static_cast<int64_t>(x->size());
    if (a < 0 || a >= static_cast<int64_t>(x->size())) return false;
  }
  for (const int64_t s : *steps)
    if (s == 0) return false;
  auto attributes = slice_bounds(*x, *axes, *starts, *ends, *steps, graph.assumptions);
  if (!attributes) return false;
  node.attributes = std::move(*attributes);
  node.inputs.resize(1);
  return true;
}

// An Expand or Reshape target, a Pad or Tile amount that is known by now and needs no further meaning.
bool settle_shape(Graph& graph, Node& node) {
  if (node.op == Op::kTile && !node.attributes.has(key::kRepeats)) {
    const auto repeats = elements(graph, node, 1);
    if (!repeats) return false;
    node.attributes.set(key::kRepeats, *repeats);
  } else if (node.op == Op::kConstantOfShape && !node.attributes.has(key::kShape)) {
    const auto shape = elements(graph, node, 0);
    if (!shape) return false;
    node.attributes.set(key::kShape, *shape);
    node.inputs.clear();
    return true;
  } else if (node.op == Op::kReshape && !node.attributes.has(key::kShape)) {
    const auto shape = elements(graph, node, 1);
    if (!shape) return false;
    for (const Expr& e : *shape)
      if (e.constant().value_or(1) <= 0 || !e.lower_bound() || *e.lower_bound() < 0) return false;
    node.attributes.set(key::kShape, *shape);
    node.attributes.erase(key::kAllowzero);
  } else if (node.op == Op::kExpand && !node.attributes.has(key::kShape)) {
    const auto target = elements(graph, node, 1);
    const auto& x = graph.value(node.inputs[0]).shape;
    if (!target || !x) return false;
    const auto shape = shape_rules::broadcast_shape(*target, *x);
    if (!shape) return false;
    node.attributes.set(key::kShape, *shape);
  } else {
    return false;
  }
  node.inputs.resize(1);
  return true;
}

bool settle(Graph& graph, Node& node) {
  return node.op == Op::kSlice ? settle_slice(graph, node) : settle_shape(graph, node);
}

}  // namespace

bool fold_constants(Graph& graph) {
  bool changed = false;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    if (node.removed) continue;
    for (auto& subgraph : node.subgraphs) changed |= fold_constants(*subgraph);
    const NodeId id = static_cast<NodeId>(i);
    if (settle(graph, node)) {
      changed = true;
      for (const ValueId out : node.outputs)
        if (out != kNoValue) graph.value(out).shape.reset();
    }
    infer_node(graph, id);
    changed |= fold_node(graph, id, graph.folding->max_elements);
  }
  return changed;
}

}  // namespace ark::passes
