#include <algorithm>
#include <stdexcept>

#include "base/ir/kernels/common.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::kernels {
namespace {

constexpr int64_t kMostAxes = 8;         // that a small operand names
constexpr std::size_t kMostOutputs = 3;  // of operators with a fixed number

// An operand as the rule sees values: its sizes, and the elements of what may name axes or counts.
Value value_of(const TensorView& view) {
  Value value{.dtype = view.dtype, .shape = Shape(view.shape().begin(), view.shape().end())};
  const bool is_there = view.data || view.size() == 0;
  if (!is_there || view.rank > 1 || view.size() > kMostAxes || !is_integer(view.dtype)) return value;
  std::array<int64_t, kMostAxes> elements;
  load(view, 0, view.size(), elements.data());
  value.elements.emplace(elements.begin(), elements.begin() + view.size());
  return value;
}

}  // namespace

std::vector<OutputType> by_rule(const KernelCall& call) {
  Graph graph;
  Node& node = graph.nodes.emplace_back(Node{.op = call.op, .attributes = *call.attributes});
  for (const TensorView& view : call.inputs) {
    node.inputs.push_back(view.present() ? static_cast<ValueId>(graph.values.size()) : kNoValue);
    if (view.present()) graph.values.push_back(value_of(view));
  }
  for (std::size_t i = 0; i < std::max(call.outputs.size(), kMostOutputs); ++i) {
    node.outputs.push_back(static_cast<ValueId>(graph.values.size()));
    graph.values.emplace_back();
  }
  shape_rules::Context context(graph, 0);
  try {
    shape_rules::rule_of(call.op)(context);
  } catch (const Error& error) {
    misfit(error.what());
  } catch (const std::out_of_range&) {
    misfit("an attribute or shape has fewer entries than the operator needs");
  }
  std::vector<OutputType> outputs;
  for (const ValueId id : node.outputs) {
    const Value& value = graph.value(id);
    if (value.dtype == DType::kUndefined) break;  // the operator has fewer
    OutputType& output = outputs.emplace_back(OutputType{value.dtype, {}});
    for (const Expr& size : value.shape.value_or(Shape{Expr::symbol("rank")})) {
      if (!size.constant()) misfit("its sizes do not follow from those of its operands");
      output.dims.push_back(*size.constant());
    }
  }
  return outputs;
}

}  // namespace ark::kernels
