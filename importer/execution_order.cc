#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "importer/builder.h"
#include "importer/schema.h"

namespace ark {
namespace {

using Names = std::unordered_set<std::string>;

// Names that a subgraph reads from around it.
void collect_free(const onnx::Graph& graph, Names& free) {
  Names inside, read;
  for (const auto& v : graph.inputs) inside.insert(v.name);
  for (const auto& t : graph.initializers) inside.insert(t.name);
  for (const auto& node : graph.nodes) {
    inside.insert(node.outputs.begin(), node.outputs.end());
    read.insert(node.inputs.begin(), node.inputs.end());
    for (const auto& a : node.attributes)
      if (a.g) collect_free(*a.g, read);
  }
  for (const auto& v : graph.outputs) read.insert(v.name);
  for (const auto& name : read)
    if (!inside.contains(name)) free.insert(name);
}

class Order {
 public:
  explicit Order(const std::vector<onnx::Node>& nodes) : nodes_(nodes), needs_(nodes.size()) {
    std::unordered_map<std::string, std::size_t> producer;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      for (const std::string& name : nodes[i].outputs) producer.emplace(name, i);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      Names reads(nodes[i].inputs.begin(), nodes[i].inputs.end());
      for (const auto& a : nodes[i].attributes)
        if (a.g) collect_free(*a.g, reads);
      reads.erase("");
      for (const std::string& name : reads)
        if (const auto it = producer.find(name); it != producer.end()) needs_[i].push_back(it->second);
      std::sort(needs_[i].begin(), needs_[i].end());
    }
  }

  std::vector<std::size_t> run() {
    std::vector<std::size_t> order;
    std::vector<uint8_t> mark(nodes_.size());                // 0 new, 1 open, 2 done
    std::vector<std::pair<std::size_t, std::size_t>> stack;  // node, index of the next need
    for (std::size_t root = 0; root < nodes_.size(); ++root) {
      if (mark[root]) continue;
      mark[root] = 1, stack.emplace_back(root, 0);
      while (!stack.empty()) {
        auto& [node, at] = stack.back();
        if (at == needs_[node].size()) {
          mark[node] = 2, order.push_back(node), stack.pop_back();
          continue;
        }
        const std::size_t next = needs_[node][at++];
        if (mark[next] == 1)
          throw Error(Code::kBadModel, "the graph has a cycle through node " +
                                           onnx::label_of("", nodes_[next], next) +
                                           "; ONNX graphs are acyclic");
        if (mark[next] == 0) mark[next] = 1, stack.emplace_back(next, 0);
      }
    }
    return order;
  }

 private:
  const std::vector<onnx::Node>& nodes_;
  std::vector<std::vector<std::size_t>> needs_;  // producers that each node waits for
};

}  // namespace

std::vector<std::size_t> execution_order(const std::vector<onnx::Node>& nodes) { return Order(nodes).run(); }

}  // namespace ark
