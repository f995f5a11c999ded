// MatMul, then Add of a constant row -> MatMul with bias.
#include "importer/passes/match.h"
#include "importer/passes/passes.h"

namespace ark::passes {

bool absorb_bias(Graph& graph) {
  bool changed = false;
  const auto uses = use_counts(graph);
  for (Node& add : graph.nodes) {
    if (add.removed || add.op != Op::kAdd) continue;
    for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
      const ValueId product = add.inputs[side], bias = add.inputs[1 - side];
      const Node* matmul = made_by(graph, product, Op::kMatMul);
      const bool free = matmul && (matmul->inputs.size() < 3 || matmul->inputs[2] == kNoValue);
      if (!free || uses[product] != 1 || !is_row_constant(graph, bias, product)) continue;
      if (graph.value(bias).dtype != graph.value(product).dtype) continue;
      const Attributes attributes = matmul->attributes;
      rewrite(add, Op::kMatMul, {matmul->inputs[0], matmul->inputs[1], bias}, attributes);
      changed = true;
      break;
    }
  }
  if (changed) graph.remove_dead();
  return changed;
}

}  // namespace ark::passes
