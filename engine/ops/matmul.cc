// MatMul: columns of the weight (column-parallel), its rows (row-parallel, a partial sum), rows of x.
#include "base/ir/keys.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

std::vector<Loop> loops(const Graph& graph, const Node& node) {
  const int rank_x = rank_of(graph, node.inputs[0]), rank_w = rank_of(graph, node.inputs[1]);
  if (rank_x < 2 || rank_w != 2 || node.attributes.get_or(key::kTransA, 0) != 0) return {};
  const bool transposed = node.attributes.get_or(key::kTransB, 0) != 0;
  std::vector<Loop> loops;
  for (int axis = 0; axis + 1 < rank_x; ++axis) loops.push_back({{axis, -1}, {axis}});
  loops.push_back({{-1, transposed ? 0 : 1}, {rank_x - 1}});
  loops.push_back({{rank_x - 1, transposed ? 1 : 0}, {-1}, true});
  return loops;
}

void lower(Lowering& l, const Node& node) {
  if (!l.is_decoder() || !is_panel_matmul(l.graph(), node)) return l.emit_generic(node);
  const Cluster& c = l.cluster();
  const bool transposed = node.attributes.get_or(key::kTransB, 0) != 0;
  Variant variant{.code = OpCode::kMatMul, .epilogue = c.epilogue};
  variant.recipe = l.recipe(node);
  const Operand weight = l.panels(node, transposed);
  variant.precision = l.precision(node, weight);
  l.emit(node.name, variant,
         {l.read(node.inputs[0]), weight, l.read(c.bias), l.read(c.residual), l.write(c.output)});
}

}  // namespace

std::vector<OpRule> matmul_rules() { return {{Op::kMatMul, loops, false, lower}}; }

}  // namespace ark
