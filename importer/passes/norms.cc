// Norms in the styles of exporters. RMS norm: x * 1/sqrt(mean(x^2) + epsilon) * scale, with Pow or Mul, Div or
// Reciprocal or Rsqrt, and, for 16-bit models, Casts to float and back around the statistics. LayerNorm: that of
// x - mean(x), and a bias.
#include "base/ir/keys.h"
#include "importer/passes/match.h"
#include "importer/passes/passes.h"

namespace ark::passes {
namespace {

struct RmsNorm {
  ValueId x;
  double epsilon;
};

// mean(x^2) + epsilon.
std::optional<RmsNorm> mean_square(const Graph& graph, ValueId id) {
  const Node* add = made_by(graph, id, Op::kAdd);
  if (!add) return std::nullopt;
  for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
    const Node* mean = made_by(graph, add->inputs[side], Op::kReduceMean);
    const auto epsilon = number(graph, add->inputs[1 - side]);
    if (!mean || !epsilon || !over_last_axis(graph, *mean)) continue;
    if (const Node* pow = made_by(graph, mean->inputs[0], Op::kPow); pow && about(graph, pow->inputs[1], 2))
      return RmsNorm{pow->inputs[0], *epsilon};
    if (const Node* mul = made_by(graph, mean->inputs[0], Op::kMul); mul && mul->inputs[0] == mul->inputs[1])
      return RmsNorm{mul->inputs[0], *epsilon};
  }
  return std::nullopt;
}

std::optional<RmsNorm> root_mean_square(const Graph& graph, ValueId id) {
  if (const Node* root = made_by(graph, id, Op::kSqrt)) return mean_square(graph, root->inputs[0]);
  const Node* pow = made_by(graph, id, Op::kPow);
  return pow && about(graph, pow->inputs[1], 0.5) ? mean_square(graph, pow->inputs[0]) : std::nullopt;
}

std::optional<RmsNorm> inverse_rms(const Graph& graph, ValueId id) {
  const Node* node = graph.producer(id);
  if (!node) return std::nullopt;
  switch (node->op) {
    case Op::kReciprocal:
      return root_mean_square(graph, node->inputs[0]);
    case Op::kDiv:
      return about(graph, node->inputs[0], 1) ? root_mean_square(graph, node->inputs[1]) : std::nullopt;
    case Op::kRsqrt:
      return mean_square(graph, node->inputs[0]);
    case Op::kPow:
      return about(graph, node->inputs[1], -0.5) ? mean_square(graph, node->inputs[0]) : std::nullopt;
    default:
      return std::nullopt;
  }
}

// `id` and `x` are the same numbers, up to a Cast that widens.
bool same_numbers(const Graph& graph, ValueId id, ValueId x) {
  if (id == x) return true;
  const Node* cast = made_by(graph, x, Op::kCast);
  return cast && cast->inputs[0] == id;
}

// x * inverse, inverse * x, or x / root.
std::optional<RmsNorm> rms_normalized(const Graph& graph, const Node& node) {
  if (node.op == Op::kDiv) {
    const auto m = root_mean_square(graph, node.inputs[1]);
    return m && same_numbers(graph, node.inputs[0], m->x) ? m : std::nullopt;
  }
  for (const std::size_t side : {std::size_t{0}, std::size_t{1}})
    if (const auto m = inverse_rms(graph, node.inputs[side]);
        m && same_numbers(graph, node.inputs[1 - side], m->x))
      return m;
  return std::nullopt;
}

// x of x - mean(x); kNoValue if it is something else.
ValueId centred(const Graph& graph, ValueId difference) {
  const Node* sub = made_by(graph, difference, Op::kSub);
  const Node* mean = sub ? made_by(graph, sub->inputs[1], Op::kReduceMean) : nullptr;
  const bool is_own = mean && mean->inputs[0] == sub->inputs[0] && over_last_axis(graph, *mean);
  return is_own ? sub->inputs[0] : kNoValue;
}

class NormFuser {
 public:
  explicit NormFuser(Graph& graph) : graph_(graph), consumers_(graph.consumers()), uses_(use_counts(graph)) {}

  bool run() {
    bool changed = false;
    for (Node& node : graph_.nodes) {
      if (node.removed || (node.op != Op::kMul && node.op != Op::kDiv)) continue;
      const auto match = rms_normalized(graph_, node);
      if (!match || graph_.value(match->x).dtype != graph_.value(node.outputs[0]).dtype) continue;
      changed = true;
      fuse(node, *match);
    }
    if (changed) graph_.remove_dead();
    return changed;
  }

 private:
  // The one reader of `id`, if it is an `op`.
  Node* only_reader(ValueId id, Op op) {
    if (consumers_[id].size() != 1 || uses_[id] != 1) return nullptr;
    Node& reader = graph_.node(consumers_[id][0]);
    return reader.op == op ? &reader : nullptr;
  }

  void fuse(Node& node, const RmsNorm& m) {
    const ValueId whole = centred(graph_, m.x);
    const Op op = whole == kNoValue ? Op::kRmsNorm : Op::kLayerNorm;
    std::vector<ValueId> inputs{whole == kNoValue ? m.x : whole};
    const Attributes attributes{{key::kAxis, static_cast<int64_t>(graph_.value(m.x).shape->size()) - 1},
                                {key::kEpsilon, m.epsilon}};
    ValueId y = node.outputs[0];
    rewrite(node, op, inputs, attributes);
    // Float statistics of a 16-bit tensor: the operator keeps them in float by itself.
    const Node* widened = made_by(graph_, inputs[0], Op::kCast);
    if (Node* back = widened ? only_reader(y, Op::kCast) : nullptr) {
      const DType narrow = graph_.value(widened->inputs[0]).dtype;
      if (is_narrow_float(narrow) && graph_.value(back->outputs[0]).dtype == narrow) {
        inputs = {widened->inputs[0]};
        y = back->outputs[0];
        rewrite(*back, op, inputs, attributes);
      }
    }
    for (const Op factor : {Op::kMul, Op::kAdd}) {
      Node* next = factor == Op::kMul || op == Op::kLayerNorm ? only_reader(y, factor) : nullptr;
      const ValueId row = next ? other_input(*next, y) : kNoValue;
      if (row == kNoValue || !is_row_constant(graph_, row, y) ||
          graph_.value(row).dtype != graph_.value(y).dtype)
        return;
      inputs.push_back(row);
      y = next->outputs[0];
      rewrite(*next, op, inputs, attributes);
    }
  }

  Graph& graph_;
  const std::vector<std::vector<NodeId>> consumers_;
  const std::vector<int> uses_;
};

}  // namespace

bool fuse_norms(Graph& graph) { return NormFuser(graph).run(); }

}  // namespace ark::passes
