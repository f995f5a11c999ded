#include "engine/partition/prepare.h"

#include <numeric>

#include "base/ir/keys.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

bool is_wide(DType t) { return t == DType::kI32 || t == DType::kI64; }

// Rows of a table of fewer bits than f32 come out as f32: what widens them is no work of its own.
bool reads_narrow_table(const Graph& graph, const Node& node) {
  if (node.op != Op::kGather) return false;
  const Value& table = graph.value(node.inputs[0]);
  return table.constant && is_narrow_float(table.dtype) && rank_of(graph, node.inputs[0]) == 2;
}

// A Cast of narrow weights or table rows to f32, which whoever reads them does as well.
bool is_needless(const Graph& graph, const Node& cast) {
  if (cast.op != Op::kCast || cast.inputs[0] == kNoValue) return false;
  const Value& in = graph.value(cast.inputs[0]);
  const Node* producer = graph.producer(cast.inputs[0]);
  return graph.value(cast.outputs[0]).dtype == DType::kF32 &&
         ((in.constant && is_narrow_float(in.dtype)) || (producer && reads_narrow_table(graph, *producer)));
}

// What an integer value is a Cast of.
ValueId narrowed(const Graph& graph, ValueId v) {
  const Node* producer = graph.producer(v);
  while (producer && producer->op == Op::kCast && is_wide(graph.value(v).dtype) &&
         is_wide(graph.value(producer->inputs[0]).dtype)) {
    v = producer->inputs[0];
    producer = graph.producer(v);
  }
  return v;
}

// A weight as it is stored: trans_b says the rest.
void turn_weight(Graph& graph, Node& node) {
  if (node.inputs.size() < 2) return;
  const ConstantPtr w = graph.value(node.inputs[1]).constant;
  if (!w || w->perm != std::vector<int64_t>{1, 0}) return;
  node.inputs[1] = graph.add_constant(transposed(w, {1, 0}));
  node.attributes.set(key::kTransB, int64_t{node.attributes.get_or(key::kTransB, 0) == 0});
}

}  // namespace

Graph prepare(const Graph& graph) {
  Graph result = graph;
  std::vector<ValueId> now(result.values.size());  // what is read in a value's place
  std::iota(now.begin(), now.end(), 0);
  for (Node& node : result.nodes) {
    if (node.removed) continue;
    for (ValueId& v : node.inputs)
      if (v != kNoValue) v = now[v];
    if (is_needless(result, node)) now[node.outputs[0]] = node.inputs[0];
    if (node.op == Op::kMatMul) turn_weight(result, node);
    if (node.op == Op::kGather) node.inputs[1] = narrowed(result, node.inputs[1]);
    if (node.op == Op::kRotary && node.inputs.size() > 3) node.inputs[3] = narrowed(result, node.inputs[3]);
  }
  for (ValueId& v : result.outputs) v = now[v];
  for (const Node& node : result.nodes)
    if (!node.removed && reads_narrow_table(result, node)) result.value(node.outputs[0]).dtype = DType::kF32;
  result.merge_constants();
  result.remove_dead();
  result.compact();
  verify(result, "prepare");
  return result;
}

}  // namespace ark
