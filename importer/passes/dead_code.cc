#include "importer/passes/match.h"
#include "importer/passes/passes.h"

namespace ark::passes {

void drop_unread_outputs(Graph& graph) {
  const auto uses = use_counts(graph);
  for (Node& n : graph.nodes) {
    if (n.removed || (n.op != Op::kLayerNorm && n.op != Op::kMaxPool)) continue;
    for (std::size_t i = 1; i < n.outputs.size(); ++i) {
      if (n.outputs[i] == kNoValue || uses[n.outputs[i]] > 0) continue;
      graph.value(n.outputs[i]).producer = kNoNode;
      n.outputs[i] = kNoValue;
    }
    while (n.outputs.size() > 1 && n.outputs.back() == kNoValue) n.outputs.pop_back();
  }
}

bool remove_dead_code(Graph& graph) {
  const auto counted = [&] {
    std::size_t values = graph.values.size(), nodes = 0;
    for (const Node& n : graph.nodes) nodes += !n.removed;
    return std::pair(values, nodes);
  };
  const auto before = counted();
  for (Node& n : graph.nodes)
    for (auto& subgraph : n.subgraphs)
      if (!n.removed) remove_dead_code(*subgraph);
  graph.remove_dead();
  drop_unread_outputs(graph);
  graph.compact();
  return counted() != before;
}

}  // namespace ark::passes
