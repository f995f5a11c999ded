// SelectRows: by any axis but the rows.
#include "engine/lower/lowering.h"
#include "engine/ops/rules.h"

namespace ark {
namespace {

std::vector<Loop> loops(const Graph& graph, const Node& node) {
  std::vector<Loop> loops;
  for (int axis = 1; axis < rank_of(graph, node.inputs[0]); ++axis) loops.push_back({{axis}, {axis}});
  return loops;
}

void lower(Lowering& l, const Node& node) {
  const Expr rows = l.local_shape(node.outputs[0])[0];
  l.emit(node.name, {.code = OpCode::kSelectRows}, {l.read(node.inputs[0]), l.write(node.outputs[0])}, &rows);
}

}  // namespace

OpRule select_rows_rule() { return {Op::kSelectRows, loops, true, lower}; }

}  // namespace ark
