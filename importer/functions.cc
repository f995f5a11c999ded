// Model-local functions: lookup, and the count of what their expansion makes, taken before anything is
// expanded.
#include "base/error.h"
#include "importer/builder.h"

namespace ark {
namespace {

std::string identity_of(const std::string& domain, const std::string& name, const std::string& overload) {
  return domain + '\0' + name + '\0' + overload;
}

}  // namespace

FunctionTable::FunctionTable(const onnx::Model& model, const Limits& limits) : limits_(limits) {
  for (const onnx::Function& f : model.functions)
    if (!functions_.emplace(identity_of(f.domain, f.name, f.overload), &f).second)
      throw Error(Code::kBadModel,
                  "function '" + escaped(f.domain) + "." + escaped(f.name) + "' is defined twice");
}

const onnx::Function* FunctionTable::find(const onnx::Node& call) const {
  if (functions_.empty()) return nullptr;
  const auto it = functions_.find(identity_of(call.domain, call.op_type, call.overload));
  return it == functions_.end() ? nullptr : it->second;
}

void FunctionTable::check_expansion(const onnx::Graph& graph) {
  for (const auto& [identity, function] : functions_) nodes_of(*function, 1);
  if (!functions_.empty()) nodes_of(graph.nodes, 0);
}

int64_t FunctionTable::nodes_of(const std::vector<onnx::Node>& nodes, int depth) {
  int64_t total = 0;
  for (const onnx::Node& node : nodes) {
    ++total;
    if (const onnx::Function* callee = find(node)) total += nodes_of(*callee, depth + 1);
    for (const onnx::Attribute& a : node.attributes)
      if (a.g) total += nodes_of(a.g->nodes, depth);
    if (total > limits_.max_function_nodes)
      throw Error(Code::kBadModel,
                  "function '" + escaped(node.op_type) + "' expands the graph to more than " +
                      std::to_string(limits_.max_function_nodes) +
                      " nodes (max_function_nodes): the file is a bomb, or must be simplified");
  }
  return total;
}

int64_t FunctionTable::nodes_of(const onnx::Function& function, int depth) {
  if (depth > limits_.max_nesting)
    throw Error(Code::kBadModel, "function '" + escaped(function.name) + "' is called more than " +
                                     std::to_string(limits_.max_nesting) + " levels deep (max_nesting)");
  const auto [it, is_new] = sizes_.emplace(&function, -1);
  if (!is_new && it->second < 0)
    throw Error(Code::kBadModel,
                "function '" + escaped(function.name) + "' calls itself, which ONNX forbids");
  if (is_new) {
    const int64_t n = nodes_of(function.nodes, depth);
    sizes_[&function] = n;
  }
  return sizes_[&function];
}

}  // namespace ark
