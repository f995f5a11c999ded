#include "importer/widening.h"

#include "importer/infer.h"

namespace ark {
namespace {

bool widens(const Graph& graph, const Node& node) {
  const DType from = graph.value(node.inputs[0]).dtype;
  return node.op == Op::kCast && (from == DType::kF16 || from == DType::kBF16) &&
         graph.value(node.outputs[0]).dtype == DType::kF32;
}

}  // namespace

ConstantPtr stored_constant(const Graph& graph, ValueId id) {
  constexpr std::size_t kMostSteps = 16;  // between a weight and what reads it
  std::vector<const Node*> movement;      // from the reader back
  bool widened = false;
  while (!graph.value(id).constant) {
    const Node* node = graph.producer(id);
    if (!node || node->inputs.empty() || node->inputs[0] == kNoValue || node->outputs.size() != 1 ||
        movement.size() == kMostSteps)
      return nullptr;
    if (!widened && widens(graph, *node))
      widened = true;
    else
      movement.push_back(node);
    id = node->inputs[0];
  }
  ConstantPtr view = graph.value(id).constant;
  for (auto node = movement.rbegin(); view && node != movement.rend(); ++node) view = lazy_view(**node, view);
  return view;
}

}  // namespace ark
