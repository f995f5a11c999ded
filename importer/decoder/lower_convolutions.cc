#include "importer/decoder/lower_convolutions.h"

#include <algorithm>
#include <numeric>

#include "base/ir/keys.h"
#include "importer/op_importer.h"

namespace ark::decoder {
namespace {

bool looks_at_one_place(const Graph& graph, const Node& node) {
  const auto &x = graph.value(node.inputs[0]).shape, &w = graph.value(node.inputs[1]).shape;
  if (!x || !w || x->size() < 3 || w->size() != x->size() || node.attributes.get_or(key::kGroup, 1) != 1)
    return false;
  const auto are_all = [&](const Key<std::vector<int64_t>>& k, int64_t wanted) {
    const auto numbers = node.attributes.get_or(k, {});
    return std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n == wanted; });
  };
  return std::all_of(w->begin() + 2, w->end(), [](const Expr& size) { return size.is_constant(1); }) &&
         std::all_of(w->begin(), w->end(), [](const Expr& size) { return size.constant().has_value(); }) &&
         are_all(key::kStrides, 1) && are_all(key::kPads, 0);
}

ValueId as_product(Graph& graph, const Node& node) {
  const auto emit1 = [&](Op op, std::vector<ValueId> in, Attributes attributes) {
    return emit(graph, op, node.name, std::move(in), std::move(attributes))[0];
  };
  const Shape w = *graph.value(node.inputs[1]).shape;
  const auto rank = static_cast<int64_t>(w.size());
  std::vector<int64_t> features_last(w.size()), features_first(w.size());
  std::iota(features_last.begin() + 1, features_last.end() - 1, 2);
  features_last.back() = 1;
  std::iota(features_first.begin() + 2, features_first.end(), 1);
  features_first[1] = rank - 1;
  const ValueId rows = emit1(Op::kTranspose, {node.inputs[0]}, {{key::kPerm, features_last}});
  const ValueId matrix = emit1(Op::kReshape, {node.inputs[1]}, {{key::kShape, Shape{w[0], w[1]}}});
  ValueId y = emit1(Op::kMatMul, {rows, matrix}, {{key::kTransB, int64_t{1}}});
  if (node.input(2) != kNoValue) y = emit1(Op::kAdd, {y, node.inputs[2]}, {});
  return emit1(Op::kTranspose, {y}, {{key::kPerm, features_first}});
}

}  // namespace

bool lower_convolutions(Graph& graph) {
  bool changed = false;
  const auto count = graph.nodes.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Node node = graph.nodes[i];
    if (node.removed || node.op != Op::kConv || !looks_at_one_place(graph, node)) continue;
    graph.replace_uses(node.outputs[0], as_product(graph, node));
    graph.nodes[i].removed = true;
    changed = true;
  }
  if (changed) graph.sort();
  return changed;
}

}  // namespace ark::decoder
