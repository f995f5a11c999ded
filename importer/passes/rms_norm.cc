// RMS norm in the styles of exporters: x * 1/sqrt(mean(x^2) + epsilon) * scale, with Pow or Mul, Div or
// Reciprocal or Rsqrt, and, for 16-bit models, Casts to float and back around the statistics.
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

class RmsNormFuser {
 public:
  explicit RmsNormFuser(Graph& graph)
      : graph_(graph), consumers_(graph.consumers()), uses_(use_counts(graph)) {}

  bool run() {
    bool changed = false;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      Node& node = graph_.nodes[i];
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
  NodeId only_reader(ValueId id) const {
    const auto& readers = consumers_[id];
    return readers.size() == 1 && uses_[id] == 1 ? readers[0] : kNoNode;
  }

  void fuse(Node& node, const RmsNorm& m) {
    const Attributes attributes{{key::kAxis, static_cast<int64_t>(graph_.value(m.x).shape->size()) - 1},
                                {key::kEpsilon, m.epsilon}};
    ValueId x = m.x, y = node.outputs[0];
    rewrite(node, Op::kRmsNorm, {x}, attributes);
    // Float statistics of a 16-bit tensor: the operator keeps them in float by itself.
    const Node* widened = made_by(graph_, x, Op::kCast);
    NodeId reader = only_reader(y);
    if (widened && reader != kNoNode && graph_.node(reader).op == Op::kCast) {
      const DType narrow = graph_.value(widened->inputs[0]).dtype;
      Node& back = graph_.node(reader);
      if (is_narrow_float(narrow) && graph_.value(back.outputs[0]).dtype == narrow) {
        x = widened->inputs[0];
        y = back.outputs[0];
        rewrite(back, Op::kRmsNorm, {x}, attributes);
        reader = only_reader(y);
      }
    }
    if (reader == kNoNode || graph_.node(reader).op != Op::kMul) return;
    Node& scale = graph_.node(reader);
    const ValueId row = other_input(scale, y);
    if (row == kNoValue || !is_row_constant(graph_, row, y) ||
        graph_.value(row).dtype != graph_.value(y).dtype)
      return;
    rewrite(scale, Op::kRmsNorm, {x, row}, attributes);
  }

  Graph& graph_;
  const std::vector<std::vector<NodeId>> consumers_;
  const std::vector<int> uses_;
};

}  // namespace

bool fuse_rms_norm(Graph& graph) { return RmsNormFuser(graph).run(); }

}  // namespace ark::passes
