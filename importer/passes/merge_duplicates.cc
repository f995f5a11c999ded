// Nodes that compute the same are merged, and constants that are the same. Where the data decide a size, each of the
// nodes named it by a symbol of its own: that of the node that goes is that of its twin from here on.
#include <map>
#include <set>
#include <string>

#include "importer/infer.h"
#include "importer/passes/match.h"
#include "importer/passes/passes.h"

namespace ark::passes {
namespace {

class SizesOfTwins {
 public:
  explicit SizesOfTwins(const Graph& graph) {
    for (const ValueId id : graph.inputs)
      if (graph.value(id).shape)
        for (const Expr& dim : *graph.value(id).shape) dim.collect_symbols(of_inputs_);
  }

  void equate(const std::optional<Shape>& gone, const std::optional<Shape>& kept) {
    if (!gone || !kept || gone->size() != kept->size()) return;
    for (std::size_t i = 0; i < gone->size(); ++i) {
      const auto name = (*gone)[i].as_symbol();
      if (!name || of_inputs_.contains(*name) || by_symbol_.contains(*name)) continue;
      const Expr size = (*kept)[i].substitute(by_symbol_);
      if (size.symbols().contains(*name)) continue;
      if (in_sizes_.contains(*name))
        for (auto& [other, value] : by_symbol_) value = value.substitute({{*name, size}});
      size.collect_symbols(in_sizes_);
      by_symbol_.emplace(*name, size);
    }
  }

  void apply(Graph& graph) const {
    if (!by_symbol_.empty()) substitute(graph, by_symbol_);
  }

 private:
  std::set<std::string> of_inputs_;
  std::map<std::string, Expr> by_symbol_;  // values name no symbol that goes
  std::set<std::string> in_sizes_;         // and these alone
};

}  // namespace

bool merge_duplicates(Graph& graph) {
  const bool merged = graph.merge_constants();
  Aliases aliases(graph);
  SizesOfTwins sizes(graph);
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
      if (node.outputs[i] != kNoValue) {
        aliases.set(node.outputs[i], twin->outputs[i]);
        sizes.equate(graph.value(node.outputs[i]).shape, graph.value(twin->outputs[i]).shape);
      }
    node.removed = true;
  }
  aliases.apply(graph);
  sizes.apply(graph);
  return merged || aliases.any();
}

}  // namespace ark::passes
