// x * Sigmoid(x) -> Silu; x * Sigmoid(alpha * x) -> QuickGelu.
#include "base/ir/keys.h"
#include "importer/passes/match.h"
#include "importer/passes/passes.h"

namespace ark::passes {
namespace {

// alpha if `id` is alpha * x.
std::optional<double> multiple_of(const Graph& graph, ValueId id, ValueId x) {
  if (id == x) return 1;
  const Node* mul = made_by(graph, id, Op::kMul);
  return mul ? number(graph, other_input(*mul, x)) : std::nullopt;
}

}  // namespace

bool fuse_silu(Graph& graph) {
  bool changed = false;
  for (Node& mul : graph.nodes) {
    if (mul.removed || mul.op != Op::kMul) continue;
    for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
      const Node* sigmoid = made_by(graph, mul.inputs[side], Op::kSigmoid);
      const ValueId x = mul.inputs[1 - side];
      const auto alpha = sigmoid ? multiple_of(graph, sigmoid->inputs[0], x) : std::nullopt;
      if (!alpha) continue;
      if (*alpha == 1)
        rewrite(mul, Op::kSilu, {x});
      else
        rewrite(mul, Op::kQuickGelu, {x}, {{key::kAlpha, *alpha}});
      changed = true;
      break;
    }
  }
  if (changed) graph.remove_dead();
  return changed;
}

}  // namespace ark::passes
