#include <algorithm>

#include "base/error.h"
#include "importer/builder.h"

namespace ark {
namespace {

int64_t known_bytes(const Value& v) {
  if (!v.shape || v.dtype == DType::kString || v.dtype == DType::kUndefined) return 0;
  const auto count = element_count(*v.shape).constant();
  return count ? bytes_of(v.dtype, *count) : 0;
}

[[noreturn]] void refuse(const Node& node, const std::string& what, int64_t bytes, int64_t limit,
                         const char* name) {
  throw Error(Code::kBadModel, "node " + node.name + ": " + what + " " + std::to_string(bytes) +
                                   " bytes from constants alone; at most " + std::to_string(limit) + " (" +
                                   name + "): the file is a bomb, or must store the tensor");
}

}  // namespace

void check_generated(const Graph& graph, const Limits& limits) {
  std::vector<bool> from_constants(graph.values.size());
  for (std::size_t i = 0; i < graph.values.size(); ++i)
    from_constants[i] = graph.values[i].constant != nullptr;
  int64_t total = 0;
  for (const Node& node : graph.nodes) {
    if (node.removed) continue;
    for (const auto& subgraph : node.subgraphs) check_generated(*subgraph, limits);
    if (!node.subgraphs.empty()) continue;
    const bool all = std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
      return id == kNoValue || from_constants[static_cast<std::size_t>(id)];
    });
    if (!all) continue;
    for (const ValueId id : node.outputs) {
      if (id == kNoValue) continue;
      from_constants[static_cast<std::size_t>(id)] = true;
      const int64_t bytes = known_bytes(graph.value(id));
      if (bytes > limits.max_generated_bytes)
        refuse(node, "makes", bytes, limits.max_generated_bytes, "max_generated_bytes");
      total += bytes;
      if (total > limits.max_generated_total)
        refuse(node, "and others make", total, limits.max_generated_total, "max_generated_total");
    }
  }
}

}  // namespace ark
