// MatMul: columns of the weight (column-parallel), its rows (row-parallel, a partial sum), rows of x.
#include "base/ir/keys.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

std::vector<Loop> matmul_loops(const Graph& graph, const Node& node) {
  const int rank_x = rank_of(graph, node.inputs[0]), rank_w = rank_of(graph, node.inputs[1]);
  if (rank_x < 2 || rank_w != 2 || node.attributes.get_or(key::kTransA, 0) != 0) return {};
  const bool transposed = node.attributes.get_or(key::kTransB, 0) != 0;
  std::vector<Loop> loops;
  for (int axis = 0; axis + 1 < rank_x; ++axis) loops.push_back({{axis, -1}, {axis}});
  loops.push_back({{-1, transposed ? 0 : 1}, {rank_x - 1}});
  loops.push_back({{rank_x - 1, transposed ? 1 : 0}, {-1}, true});
  return loops;
}

// The recipe and the precision of a product, and its weight.
std::pair<Variant, Operand> product(Lowering& l, const Node& node) {
  Variant variant{.code = OpCode::kMatMul, .recipe = l.recipe(node)};
  const Operand weight = l.panels(node, node.attributes.get_or(key::kTransB, 0) != 0);
  variant.precision = l.precision(node, weight);
  return {variant, weight};
}

// One phase, if both weights are stored, multiplied and added up in one way.
void lower_gated(Lowering& l, const Cluster& c) {
  const Cluster &gate = c.apart[0], &up = c.apart[1];
  const Node& node = l.graph().node(gate.root);
  auto [variant, first] = product(l, node);
  const auto [other, second] = product(l, l.graph().node(up.root));
  if (!l.are_stored_alike(first, second) || variant.precision != other.precision ||
      variant.recipe != other.recipe) {
    for (const Cluster& part : c.apart) l.lower(part);
    return;
  }
  variant.code = OpCode::kGatedMatMul;
  variant.epilogue = gate.epilogue & kEpilogueActivations;
  l.emit(node.name, variant,
         {l.read(node.inputs[0]), first, l.read(gate.bias), second, l.read(up.bias), l.write(c.output)});
}

void lower_matmul(Lowering& l, const Node& node) {
  if (!l.is_decoder() || !is_panel_matmul(l.graph(), node)) return l.emit_generic(node);
  const Cluster& c = l.cluster();
  if (!c.apart.empty()) return lower_gated(l, c);
  auto [variant, weight] = product(l, node);
  variant.epilogue = c.epilogue;
  l.emit(node.name, variant,
         {l.read(node.inputs[0]), weight, l.read(c.bias), l.read(c.residual), l.write(c.output)});
}

}  // namespace

std::vector<OpRule> matmul_rules() { return {{Op::kMatMul, matmul_loops, false, lower_matmul}}; }

}  // namespace ark
