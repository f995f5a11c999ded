// Nodes that compute the same are merged, and constants that are the same.
#include <map>
#include <string>

#include "importer/passes/match.h"
#include "importer/passes/passes.h"

namespace ark::passes {
bool merge_duplicates(Graph& graph) {
  const bool merged = graph.merge_constants();
  Aliases aliases(graph);
  std::multimap<std::string, const Node*> seen;
  for (Node& node : graph.nodes) {
    if (node.removed) continue;
    aliases.apply(node);
    if (!node.subgraphs.empty() || node.op == Op::kRandom) continue;
    std::string key = std::to_string(static_cast<int>(node.op));
    for (const ValueId id : node.inputs) key += "," + std::to_string(id);
    key += node.attributes.str() + "/" + std::to_string(node.outputs.size());
    const Node* twin = nullptr;
    for (auto [it, end] = seen.equal_range(key); it != end && !twin; ++it)
      if (it->second->attributes.values() == node.attributes.values()) twin = it->second;
    if (!twin) {
      seen.emplace(std::move(key), &node);
      continue;
    }
    bool covered = true;  // a twin may have left out an output that is wanted here
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      covered &= node.outputs[i] == kNoValue || twin->outputs[i] != kNoValue;
    if (!covered) continue;
    for (std::size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i] != kNoValue) aliases.set(node.outputs[i], twin->outputs[i]);
    node.removed = true;
  }
  aliases.apply(graph);
  return merged || aliases.any();
}

}  // namespace ark::passes
