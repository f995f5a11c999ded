// Gather(Cast(table), ids) -> Cast(Gather(table, ids)): a table stored in 16 bits is looked up as it is
// stored, and only the rows that a call reads are widened.
#include "base/ir/keys.h"
#include "importer/passes/passes.h"
#include "importer/widening.h"

namespace ark::passes {
namespace {

bool sink(Graph& graph, NodeId id) {
  const Node& gather = graph.node(id);
  if (gather.removed || gather.op != Op::kGather || graph.value(gather.inputs[0]).constant) return false;
  const ConstantPtr table = stored_constant(graph, gather.inputs[0]);
  if (!table) return false;
  const ValueId wide = gather.outputs[0], stored = graph.add_constant(table);
  const auto shape = graph.value(wide).shape;
  const ValueId narrow = graph.add_value(graph.value(wide).name, table->dtype, shape);
  graph.node(id).inputs[0] = stored;
  graph.node(id).outputs[0] = narrow;
  graph.value(narrow).producer = id;
  graph.add_node(Op::kCast, std::string(graph.node(id).name), {narrow}, {wide},
                 {{key::kTo, static_cast<int64_t>(graph.value(wide).dtype)}});
  return true;
}

}  // namespace

bool sink_widening(Graph& graph) {
  bool changed = false;
  const std::size_t count = graph.nodes.size();
  for (std::size_t i = 0; i < count; ++i) {
    for (auto& subgraph : graph.nodes[i].subgraphs)
      if (!graph.nodes[i].removed) changed |= sink_widening(*subgraph);
    changed |= sink(graph, static_cast<NodeId>(i));
  }
  if (graph.nodes.size() != count) graph.sort();
  return changed;
}

}  // namespace ark::passes
