#include "base/ir/graph.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/index.h"

namespace ark {
namespace {

// Every value that `node` reads: its inputs, then what its subgraphs capture.
template <typename NodeT, typename F>
void for_each_read(NodeT& node, F&& f) {
  for (auto& id : node.inputs)
    if (id != kNoValue) f(id);
  for (auto& subgraph : node.subgraphs)
    for (auto& [outer, inner] : subgraph->captured) f(outer);
}

}  // namespace

ValueId Graph::add_value(std::string value_name, DType dtype, std::optional<Shape> shape) {
  Value& v = values.emplace_back();
  v.name = std::move(value_name);
  v.dtype = dtype;
  v.shape = std::move(shape);
  return static_cast<ValueId>(values.size() - 1);
}

ValueId Graph::add_constant(ConstantPtr constant) {
  const ValueId id =
      add_value(constant->name, constant->dtype, Shape(constant->dims.begin(), constant->dims.end()));
  value(id).constant = std::move(constant);
  return id;
}

NodeId Graph::add_node(Op op, std::string node_name, std::vector<ValueId> in, std::vector<ValueId> out,
                       Attributes attributes) {
  const auto id = static_cast<NodeId>(nodes.size());
  Node& n = nodes.emplace_back();
  n.op = op;
  n.name = std::move(node_name);
  n.inputs = std::move(in);
  n.outputs = std::move(out);
  n.attributes = std::move(attributes);
  for (ValueId v : n.outputs)
    if (v != kNoValue) value(v).producer = id;
  return id;
}

const Node* Graph::producer(ValueId id) const {
  if (id == kNoValue || value(id).producer == kNoNode) return nullptr;
  const Node& n = node(value(id).producer);
  return n.removed ? nullptr : &n;
}

std::vector<std::vector<NodeId>> Graph::consumers() const {
  std::vector<std::vector<NodeId>> readers(values.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].removed) continue;
    for_each_read(nodes[i], [&](ValueId id) {
      auto& list = readers[at(id)];
      if (list.empty() || list.back() != static_cast<NodeId>(i)) list.push_back(static_cast<NodeId>(i));
    });
  }
  return readers;
}

void Graph::replace_uses(ValueId from, ValueId to) {
  for (Node& n : nodes)
    if (!n.removed)
      for_each_read(n, [&](ValueId& id) {
        if (id == from) id = to;
      });
  std::replace(outputs.begin(), outputs.end(), from, to);
}

bool Graph::merge_constants() {
  std::map<std::string, ValueId> first;
  std::vector<ValueId> one(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    one[i] = static_cast<ValueId>(i);
    if (values[i].constant) one[i] = first.emplace(content_key(*values[i].constant), one[i]).first->second;
  }
  bool merged = false;
  const auto read_one = [&](ValueId& id) {
    merged = merged || one[at(id)] != id;
    id = one[at(id)];
  };
  for (Node& n : nodes)
    if (!n.removed) for_each_read(n, read_one);
  for (ValueId& id : outputs) read_one(id);
  return merged;
}

namespace {

void collect_sizes(const Node& node, std::set<std::string>& names) {
  node.attributes.collect_symbols(names);
  for (const auto& subgraph : node.subgraphs)
    for (const Node& inner : subgraph->nodes)
      if (!inner.removed) collect_sizes(inner, names);
}

// Sizes that the data decides, and the node that makes the first tensor of each: it is read where only they are.
std::map<std::string, NodeId> makers_of_sizes(const Graph& graph) {
  std::map<std::string, NodeId> makers;
  const auto note = [&](ValueId id, NodeId maker) {
    if (id == kNoValue || !graph.value(id).shape) return;
    std::set<std::string> names;
    for (const Expr& e : *graph.value(id).shape) e.collect_symbols(names);
    for (const std::string& name : names) makers.emplace(name, maker);
  };
  for (const ValueId id : graph.inputs) note(id, kNoNode);
  for (const auto& [outer, inner] : graph.captured) note(inner, kNoNode);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    for (const ValueId id : graph.nodes[i].outputs)
      if (!graph.nodes[i].removed) note(id, static_cast<NodeId>(i));
  return makers;
}

}  // namespace

void Graph::remove_dead() {
  std::vector<bool> live(nodes.size());
  std::vector<NodeId> work;
  const auto keep = [&](NodeId producer) {
    if (producer == kNoNode || live[at(producer)] || node(producer).removed) return;
    live[at(producer)] = true;
    work.push_back(producer);
  };
  const auto reach = [&](ValueId id) { keep(value(id).producer); };
  std::optional<std::map<std::string, NodeId>> makers;
  for (ValueId id : outputs) reach(id);
  while (!work.empty()) {
    const NodeId n = work.back();
    work.pop_back();
    for_each_read(node(n), reach);
    std::set<std::string> sizes;
    collect_sizes(node(n), sizes);
    if (!sizes.empty() && !makers) makers = makers_of_sizes(*this);
    for (const std::string& size : sizes)
      if (const auto it = makers->find(size); it != makers->end()) keep(it->second);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i].removed = nodes[i].removed || !live[i];
}

void Graph::sort() {
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(nodes.size(), Mark::kNew);
  std::vector<NodeId> order;
  std::vector<std::pair<NodeId, std::vector<NodeId>>> stack;  // node, producers still to visit
  const auto open = [&](NodeId id) {
    marks[at(id)] = Mark::kOpen;
    std::vector<NodeId> needs;
    for_each_read(node(id), [&](ValueId v) {
      if (value(v).producer != kNoNode) needs.push_back(value(v).producer);
    });
    std::reverse(needs.begin(), needs.end());
    stack.emplace_back(id, std::move(needs));
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].removed || marks[i] != Mark::kNew) continue;
    open(static_cast<NodeId>(i));
    while (!stack.empty()) {
      auto& [id, needs] = stack.back();
      if (needs.empty()) {
        marks[at(id)] = Mark::kDone;
        order.push_back(id);
        stack.pop_back();
        continue;
      }
      const NodeId next = needs.back();
      needs.pop_back();
      if (marks[at(next)] == Mark::kOpen)
        throw Error(Code::kBadModel, "the graph has a cycle through node " + node(next).name);
      if (marks[at(next)] == Mark::kNew && !node(next).removed) open(next);
    }
  }
  for (std::size_t i = 0; i < nodes.size(); ++i)  // tombstones keep a place, at the end
    if (nodes[i].removed) order.push_back(static_cast<NodeId>(i));
  std::vector<NodeId> place(nodes.size());
  std::vector<Node> sorted(nodes.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[at(order[i])] = static_cast<NodeId>(i);
    sorted[i] = std::move(nodes[at(order[i])]);
  }
  nodes = std::move(sorted);
  for (Value& v : values)
    if (v.producer != kNoNode) v.producer = place[at(v.producer)];
}

void Graph::compact() {
  std::vector<bool> used(values.size());
  const auto use = [&](ValueId id) { used[at(id)] = true; };
  for (ValueId id : inputs) use(id);
  for (ValueId id : outputs) use(id);
  for (const auto& [outer, inner] : captured) use(inner);
  std::vector<NodeId> node_place(nodes.size(), kNoNode);
  NodeId kept_nodes = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].removed) continue;
    for_each_read(nodes[i], use);
    for (ValueId id : nodes[i].outputs)
      if (id != kNoValue) use(id);
    node_place[i] = kept_nodes;
    if (static_cast<std::size_t>(kept_nodes) != i) nodes[at(kept_nodes)] = std::move(nodes[i]);
    ++kept_nodes;
  }
  nodes.resize(at(kept_nodes));

  std::vector<ValueId> value_place(values.size(), kNoValue);
  ValueId kept_values = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!used[i]) continue;
    value_place[i] = kept_values;
    if (static_cast<std::size_t>(kept_values) != i) values[at(kept_values)] = std::move(values[i]);
    Value& v = values[at(kept_values++)];
    if (v.producer != kNoNode) v.producer = node_place[at(v.producer)];
  }
  values.resize(at(kept_values));
  const auto renumber = [&](ValueId& id) { id = value_place[at(id)]; };
  for (ValueId& id : inputs) renumber(id);
  for (ValueId& id : outputs) renumber(id);
  for (auto& [outer, inner] : captured) renumber(inner);
  for (Node& n : nodes) {
    for_each_read(n, renumber);
    for (ValueId& id : n.outputs)
      if (id != kNoValue) renumber(id);
  }
}

}  // namespace ark
