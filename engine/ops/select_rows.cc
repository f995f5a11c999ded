// SelectRows: by any axis but the rows.
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

std::vector<Loop> select_rows_loops(const Graph& graph, const Node& node) {
  std::vector<Loop> loops;
  for (int axis = 1; axis < rank_of(graph, node.inputs[0]); ++axis) loops.push_back({{axis}, {axis}});
  return loops;
}

void lower_select_rows(Lowering& l, const Node& node) {
  l.emit(node.name, {.code = OpCode::kSelectRows}, {l.read(node.inputs[0]), l.write(node.outputs[0])});
}

}  // namespace

std::vector<OpRule> select_rows_rules() {
  return {{Op::kSelectRows, select_rows_loops, true, lower_select_rows}};
}

}  // namespace ark
