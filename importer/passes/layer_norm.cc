// LayerNorm as exporters below opset 17 write it: ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add.
#include "base/ir/keys.h"
#include "importer/passes/match.h"
#include "importer/passes/passes.h"

namespace ark::passes {
namespace {

struct Match {
  ValueId x;
  double epsilon;
};

bool is_square_of(const Graph& graph, ValueId id, ValueId x) {
  if (const Node* pow = made_by(graph, id, Op::kPow))
    return pow->inputs[0] == x && about(graph, pow->inputs[1], 2);
  const Node* mul = made_by(graph, id, Op::kMul);
  return mul && mul->inputs[0] == x && mul->inputs[1] == x;
}

// x - mean(x), and x.
ValueId centred(const Graph& graph, ValueId difference) {
  const Node* sub = made_by(graph, difference, Op::kSub);
  if (!sub) return kNoValue;
  const Node* mean = made_by(graph, sub->inputs[1], Op::kReduceMean);
  return mean && mean->inputs[0] == sub->inputs[0] && over_last_axis(graph, *mean) ? sub->inputs[0]
                                                                                   : kNoValue;
}

// Div(d, Sqrt(ReduceMean(d^2) + epsilon)) with d = x - mean(x).
std::optional<Match> normalized(const Graph& graph, const Node& div) {
  const ValueId x = centred(graph, div.inputs[0]);
  const Node* root = made_by(graph, div.inputs[1], Op::kSqrt);
  const Node* add = root ? made_by(graph, root->inputs[0], Op::kAdd) : nullptr;
  if (x == kNoValue || !add) return std::nullopt;
  for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
    const Node* mean = made_by(graph, add->inputs[side], Op::kReduceMean);
    const auto epsilon = number(graph, add->inputs[1 - side]);
    if (!mean || !epsilon || !over_last_axis(graph, *mean)) continue;
    if (is_square_of(graph, mean->inputs[0], div.inputs[0])) return Match{x, *epsilon};
  }
  return std::nullopt;
}

Attributes attributes_of(const Graph& graph, const Match& m) {
  return {{key::kAxis, static_cast<int64_t>(graph.value(m.x).shape->size()) - 1}, {key::kEpsilon, m.epsilon}};
}

// The one reader of `id`, if it is `op` with a constant row as its other operand.
NodeId scaled_by_row(const Graph& graph, const std::vector<std::vector<NodeId>>& consumers,
                     const std::vector<int>& uses, ValueId id, Op op) {
  if (uses[id] != 1 || consumers[id].size() != 1) return kNoNode;
  const NodeId reader = consumers[id][0];
  const Node& node = graph.node(reader);
  if (node.op != op) return kNoNode;
  const ValueId row = other_input(node, id);
  return row != kNoValue && is_row_constant(graph, row, id) && graph.value(row).dtype == graph.value(id).dtype
             ? reader
             : kNoNode;
}

}  // namespace

bool fuse_layer_norm(Graph& graph) {
  bool changed = false;
  const auto consumers = graph.consumers();
  const auto uses = use_counts(graph);
  for (Node& div : graph.nodes) {
    if (div.removed || div.op != Op::kDiv) continue;
    const auto match = normalized(graph, div);
    if (!match) continue;
    changed = true;
    const Attributes attributes = attributes_of(graph, *match);
    const ValueId plain = div.outputs[0];
    rewrite(div, Op::kLayerNorm, {match->x}, attributes);
    const NodeId scale = scaled_by_row(graph, consumers, uses, plain, Op::kMul);
    if (scale == kNoNode) continue;
    Node& mul = graph.node(scale);
    const ValueId gamma = other_input(mul, plain);
    rewrite(mul, Op::kLayerNorm, {match->x, gamma}, attributes);
    const NodeId shift = scaled_by_row(graph, consumers, uses, mul.outputs[0], Op::kAdd);
    if (shift == kNoNode) continue;
    Node& add = graph.node(shift);
    rewrite(add, Op::kLayerNorm, {match->x, gamma, other_input(add, mul.outputs[0])}, attributes);
  }
  if (changed) graph.remove_dead();
  return changed;
}

}  // namespace ark::passes
