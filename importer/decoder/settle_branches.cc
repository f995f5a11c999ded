#include "importer/decoder/settle_branches.h"

#include <algorithm>

#include "importer/decoder/probe.h"
#include "importer/decoder/refusal.h"
#include "importer/passes/passes.h"

namespace ark::decoder {
namespace {

constexpr int64_t kMostTried = 8'192;  // each length is: the tries together grow as the square

// The nodes of the first branch join the graph around it.
void take_branch(Graph& graph, NodeId id) {
  const Node taken = graph.node(id);  // a copy: nodes are added
  const Graph& branch = *taken.subgraphs.front();
  std::vector<ValueId> here(branch.values.size(), kNoValue);
  for (const auto& [outer, inner] : branch.captured) here[inner] = outer;
  const auto moved = [&](ValueId inner) {
    if (inner == kNoValue || here[inner] != kNoValue) return inner == kNoValue ? inner : here[inner];
    const Value& v = branch.value(inner);
    here[inner] = v.constant ? graph.add_constant(v.constant) : graph.add_value(v.name, v.dtype, v.shape);
    graph.value(here[inner]).elements = v.elements;
    return here[inner];
  };
  for (const Node& node : branch.nodes) {
    if (node.removed) continue;
    std::vector<ValueId> in, out;
    for (const ValueId value : node.inputs) in.push_back(moved(value));
    for (const ValueId value : node.outputs) out.push_back(moved(value));
    const NodeId made = graph.add_node(node.op, node.name, in, out, node.attributes);
    for (const auto& inner : node.subgraphs)
      for (auto& [outer, captured] : inner->captured) outer = moved(outer);
    graph.node(made).subgraphs = node.subgraphs;
  }
  for (std::size_t i = 0; i < taken.outputs.size(); ++i)
    if (taken.outputs[i] != kNoValue) graph.replace_uses(taken.outputs[i], moved(branch.outputs[i]));
  graph.node(id).removed = true;
}

class Choice {
 public:
  Choice(const Graph& graph, const Roles& roles) : roles_(roles), probe_(graph, roles) {}

  // Which branch `node` takes in every step; nullopt where steps do not decide it.
  std::optional<bool> of(const Node& node, int64_t length) {
    const ValueId condition = node.inputs[0];
    std::optional<bool> first;
    try {
      first = at(condition, {1, 1, 0});
    } catch (const Refusal&) {
      return std::nullopt;
    }
    const auto check = [&](const Step& step) {
      if (at(condition, step) == first) return;
      const std::string most = std::to_string(step.total() - 1);
      refuse(node, "takes its other branch from " + std::to_string(step.total()) +
                       " tokens on: sequences of up to " + most + " (--max-model-len " + most +
                       ") could be batched");
    };
    constexpr int64_t kSmall = 8;
    for (int64_t total = 1; total <= std::min(length, kMostTried); ++total) {
      check({1, total, 0});
      if (!roles_.has_past) continue;
      check({1, 1, total - 1});
      for (int64_t past = 0; past < total && total <= kSmall; ++past) check({2, total - past, past});
    }
    if (length > kMostTried)
      refuse(node, "is tried for " + std::to_string(kMostTried) + " tokens at most: sequences of so many" +
                       " (--max-model-len " + std::to_string(kMostTried) + ") could be batched");
    return first;
  }

 private:
  bool at(ValueId condition, const Step& step) {
    probe_.forget();
    return probe_.value(condition, probe_.possible(step)).integer(0) != 0;
  }

  const Roles& roles_;
  Probe probe_;
};

}  // namespace

bool settle_branches(Graph& graph, const Roles& roles, int64_t length) {
  bool any = false;
  Choice choice(graph, roles);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {  // also those that join on the way
    Node& node = graph.nodes[i];
    if (node.removed || node.op != Op::kIf) continue;
    const auto taken = choice.of(node, length);
    if (!taken) continue;
    if (!*taken) std::swap(node.subgraphs[0], node.subgraphs[1]);
    take_branch(graph, static_cast<NodeId>(i));
    any = true;
  }
  if (!any) return false;
  graph.remove_dead();
  graph.sort();
  infer_of_tokens(graph, roles.sizes);
  passes::fold_constants(graph);
  return true;
}

}  // namespace ark::decoder
