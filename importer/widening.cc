#include "importer/widening.h"

#include <algorithm>

#include "importer/infer.h"

namespace ark {
namespace {

bool is_cast(const Graph& graph, const Node& node) {
  const auto real = [&](ValueId id) {
    const DType type = graph.value(id).dtype;
    return is_floating(type) && type != DType::kF64;
  };
  return node.op == Op::kCast && real(node.inputs[0]) && real(node.outputs[0]);
}

// To more bits: each of our floating types holds all numbers of those with fewer.
bool widens(const Graph& graph, const Node* cast) {
  return bits_of(graph.value(cast->inputs[0]).dtype) < bits_of(graph.value(cast->outputs[0]).dtype);
}

}  // namespace

ConstantPtr stored_constant(const Graph& graph, ValueId id,
                            const std::function<ConstantPtr(const Node&)>& made_by) {
  constexpr std::size_t kMostSteps = 16;  // between a weight and what reads it
  std::vector<const Node*> movement;      // from the reader back
  std::vector<const Node*> casts;
  ConstantPtr view;
  while (!(view = graph.value(id).constant)) {
    const Node* node = graph.producer(id);
    if (!node || node->inputs.empty() || node->inputs[0] == kNoValue || node->outputs.size() != 1 ||
        movement.size() + casts.size() == kMostSteps)
      return nullptr;
    if (made_by && (view = made_by(*node))) break;
    (is_cast(graph, *node) ? casts : movement).push_back(node);
    id = node->inputs[0];
  }
  const bool exact =
      std::all_of(casts.begin(), casts.end(), [&](const Node* cast) { return widens(graph, cast); });
  if (!exact && !view->quantized) return nullptr;
  for (auto node = movement.rbegin(); view && node != movement.rend(); ++node) view = lazy_view(**node, view);
  return view;
}

}  // namespace ark
