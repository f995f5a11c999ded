#include <algorithm>
#include <map>

#include "importer/decoder/cleanup.h"
#include "importer/op_importer.h"

namespace ark::decoder {
namespace {

Attributes over_rows(const Attributes& attributes) {
  Attributes result = attributes;
  result.change_sizes([](const Expr& e) { return e.substitute({{"tokens", Expr::symbol("rows")}}); });
  return result;
}

// Nodes that some attention block depends on, and the blocks themselves: they see every token. So do those that read
// ids and positions, as only reals are selected.
std::vector<bool> for_all_tokens(const Graph& graph) {
  std::vector<bool> all(graph.nodes.size(), false);
  for (std::size_t i = graph.nodes.size(); i-- > 0;) {  // topological order: readers first
    const Node& node = graph.nodes[i];
    if (node.removed) continue;
    const bool reads_integers = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
      return id != kNoValue && !graph.value(id).constant && is_integer(graph.value(id).dtype);
    });
    if (node.op == Op::kPagedAttention || reads_integers) all[i] = true;
    if (!all[i]) continue;
    for (const ValueId id : node.inputs)
      if (const Node* producer = graph.producer(id)) all[producer - graph.nodes.data()] = true;
  }
  return all;
}

}  // namespace

Graph select_rows(const Graph& graph) {
  Graph result;
  result.name = graph.name;
  std::map<ValueId, ValueId> by_token, by_row;
  for (const ValueId id : graph.inputs) {
    const Value& v = graph.value(id);
    by_token[id] = result.add_value(v.name, v.dtype, v.shape);
    result.inputs.push_back(by_token[id]);
  }
  const auto constant = [&](ValueId id) {
    const auto it = by_token.find(id);
    return it != by_token.end() ? it->second : by_token[id] = result.add_constant(graph.value(id).constant);
  };
  const auto row = [&](ValueId id) {
    if (graph.value(id).constant) return constant(id);
    if (const auto it = by_row.find(id); it != by_row.end()) return it->second;
    return by_row[id] = emit(result, Op::kSelectRows, "rows wanted", {by_token.at(id)})[0];
  };
  const std::vector<bool> all = for_all_tokens(graph);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.removed) continue;
    std::vector<ValueId> inputs;
    for (const ValueId id : node.inputs)
      inputs.push_back(id == kNoValue             ? kNoValue
                       : !all[i]                  ? row(id)
                       : graph.value(id).constant ? constant(id)
                                                  : by_token.at(id));
    const auto outputs =
        emit(result, node.op, node.name, inputs, all[i] ? node.attributes : over_rows(node.attributes),
             static_cast<int>(node.outputs.size()));
    for (std::size_t k = 0; k < outputs.size(); ++k)
      if (node.outputs[k] != kNoValue) (all[i] ? by_token : by_row)[node.outputs[k]] = outputs[k];
  }
  for (const ValueId id : graph.outputs) result.outputs.push_back(row(id));
  return result;
}

}  // namespace ark::decoder
