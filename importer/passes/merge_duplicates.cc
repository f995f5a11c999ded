// Nodes that compute the same are merged, and constants that are the same (small ones by content, large ones
// by payload and view).
#include <cstring>
#include <map>

#include "importer/passes/match.h"
#include "importer/passes/passes.h"

namespace ark::passes {
namespace {

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.dims == b.dims &&
         (a.bytes() == 0 ||
          std::memcmp(a.data.get(), b.data.get(), static_cast<std::size_t>(a.bytes())) == 0);
}

bool same_attributes(const Attributes& a, const Attributes& b) {
  if (a.values().size() != b.values().size()) return false;
  for (auto i = a.values().begin(), j = b.values().begin(); i != a.values().end(); ++i, ++j) {
    if (i->first != j->first || i->second.index() != j->second.index()) return false;
    const bool same = std::visit(
        [&](const auto& x) {
          const auto& y = std::get<std::decay_t<decltype(x)>>(j->second);
          if constexpr (std::is_same_v<std::decay_t<decltype(x)>, Tensor>)
            return same_bytes(x, y);
          else
            return x == y;
        },
        i->second);
    if (!same) return false;
  }
  return true;
}

// Content of small constants, place and view of large ones.
std::string key_of(const Constant& c) {
  std::string key = std::string(name_of(c.dtype)) + ":";
  for (const int64_t d : c.dims) key += std::to_string(d) + ",";
  if (c.size() <= 64) {
    const Tensor dense = materialise(c);
    return key + "=" +
           std::string(reinterpret_cast<const char*>(dense.data.get()),
                       static_cast<std::size_t>(dense.bytes()));
  }
  for (const int64_t p : c.perm) key += "p" + std::to_string(p);
  for (const int64_t b : c.begin) key += "b" + std::to_string(b);
  for (const int64_t d : c.stored_dims) key += "s" + std::to_string(d);
  return key + "@" + std::to_string(reinterpret_cast<uintptr_t>(payload_place(c))) + "+" +
         std::to_string(c.offset);
}

void merge_constants(Graph& graph, Aliases& aliases) {
  std::map<std::string, ValueId> seen;
  const auto consumers = graph.consumers();
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const Value& v = graph.values[i];
    if (!v.constant || consumers[i].empty()) continue;
    const auto [it, fresh] = seen.emplace(key_of(*v.constant), static_cast<ValueId>(i));
    if (!fresh) aliases.set(static_cast<ValueId>(i), it->second);
  }
}

}  // namespace

bool merge_duplicates(Graph& graph) {
  Aliases aliases(graph);
  merge_constants(graph, aliases);
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
      if (same_attributes(it->second->attributes, node.attributes)) twin = it->second;
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
  return aliases.any();
}

}  // namespace ark::passes
