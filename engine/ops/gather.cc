// Gather: rows of an embedding table. A table split by rows gives sums in which one rank's term is not zero;
// one split by columns gives columns.
#include "base/ir/keys.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

std::vector<Loop> gather_loops(const Graph& graph, const Node& node) {
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

void lower_gather(Lowering& l, const Node& node) {
  if (!l.is_decoder() || !is_embedding(l.graph(), node)) return l.emit_generic(node);
  Variant variant{.code = OpCode::kEmbed};
  variant.attributes.set(key::kFirst, l.part(node.inputs[0], 0, l.rank()).begin);
  l.emit(node.name, variant, {l.read(node.inputs[1]), l.table(node.inputs[0]), l.write(node.outputs[0])});
}

}  // namespace

std::vector<OpRule> gather_rules() { return {{Op::kGather, gather_loops, false, lower_gather}}; }

}  // namespace ark
