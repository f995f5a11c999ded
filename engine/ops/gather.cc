// Gather: rows of an embedding table. A table split by rows gives sums in which one rank's term is not zero;
// one split by columns gives columns.
#include "base/ir/keys.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"
#include "engine/program/weight_codec.h"

namespace ark {
namespace {

bool is_embedding(const Graph& graph, const Node& node) {
  const Value& table = graph.value(node.inputs[0]);
  const DType indices = graph.value(node.inputs[1]).dtype;
  const WeightCodec* codec = codec_of(table.dtype);
  return table.constant && codec && codec->has_numbers && rank_of(graph, node.inputs[0]) == 2 &&
         node.attributes.get(key::kAxis) == 0 && (indices == DType::kI32 || indices == DType::kI64) &&
         !graph.value(node.inputs[1]).constant && graph.value(node.outputs[0]).dtype == DType::kF32;
}

std::vector<Loop> loops(const Graph& graph, const Node& node) {
  const int axis = static_cast<int>(node.attributes.get(key::kAxis));
  const int rank_i = rank_of(graph, node.inputs[1]);
  std::vector<Loop> loops;
  for (int a = 0; a < rank_of(graph, node.inputs[0]); ++a) {
    if (a != axis)
      loops.push_back({{a, -1}, {a < axis ? a : a - 1 + rank_i}});
    else if (is_embedding(graph, node))
      loops.push_back({{0, -1}, {-1}, true});
  }
  return loops;
}

void lower(Lowering& l, const Node& node) {
  if (!l.is_decoder() || !is_embedding(l.graph(), node)) return l.emit_generic(node);
  Variant variant{.code = OpCode::kEmbed};
  variant.attributes.set(key::kFirst, l.part(node.inputs[0], 0, l.rank()).begin);
  l.emit(node.name, variant, {l.read(node.inputs[1]), l.table(node.inputs[0]), l.write(node.outputs[0])});
}

}  // namespace

std::vector<OpRule> gather_rules() { return {{Op::kGather, loops, false, lower}}; }

}  // namespace ark
