// ExpertMatMul: each expert is split over ranks as a matrix of MatMul is, so that ranks have equal work whatever rows
// ask for. With shares K can be cut, and gives a partial sum.
#include "base/ir/keys.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

enum Input : std::size_t { kX, kExperts, kShares, kFirst };

std::vector<Loop> expert_matmul_loops(const Graph& graph, const Node& node) {
  const auto along = [&](int axis_of_weights, int axis_of_x, int axis_of_output) {
    Loop loop = empty_loop(node);
    std::fill(loop.inputs.begin() + kFirst, loop.inputs.end(), axis_of_weights);
    loop.inputs[kX] = axis_of_x;
    loop.outputs[0] = axis_of_output;
    loop.sums = axis_of_output < 0;
    return loop;
  };
  std::vector<Loop> loops{along(0, -1, rank_of(graph, node.outputs[0]) - 1)};
  if (node.inputs[kShares] != kNoValue) loops.push_back(along(1, rank_of(graph, node.inputs[kX]) - 1, -1));
  return loops;
}

void lower_expert_matmul(Lowering& l, const Node& node) {
  if (!l.is_decoder() || !is_panel_expert_matmul(l.graph(), node)) return l.emit_generic(node);
  Variant variant{.code = OpCode::kExpertMatMul};
  variant.recipe = l.recipe(node);
  std::vector<Operand> operands = l.panels(node, kFirst, true);
  operands.insert(operands.begin(), l.read(node.inputs[kX]));
  operands.insert(operands.end(),
                  {l.read(node.inputs[kExperts]), l.read(node.inputs[kShares]), l.write(node.outputs[0])});
  l.emit(node.name, variant, operands);
}

}  // namespace

std::vector<OpRule> expert_matmul_rules() {
  return {{Op::kExpertMatMul, expert_matmul_loops, false, lower_expert_matmul}};
}

}  // namespace ark
