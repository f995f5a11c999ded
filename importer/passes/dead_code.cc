#include "importer/passes/passes.h"

namespace ark::passes {

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
  graph.compact();
  return counted() != before;
}

}  // namespace ark::passes
