// LayerNorm and RmsNorm, and the operators of base/ir/rowwise.h.
#include <algorithm>

#include "base/ir/keys.h"
#include "base/ir/rowwise_host.h"
#include "engine/lower/lowering.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

void lower_norm(Lowering& l, const Node& node) {
  const Graph& graph = l.graph();
  const bool over_last = node.attributes.get(key::kAxis) + 1 == rank_of(graph, node.inputs[0]);
  const bool only_y = node.outputs.size() == 1 || std::all_of(node.outputs.begin() + 1, node.outputs.end(),
                                                              [](ValueId v) { return v == kNoValue; });
  // The kernel's: scale and bias are stored, one for each element of a row.
  const auto fits = [&](ValueId id) {
    if (id == kNoValue) return true;
    const ConstantPtr& c = graph.value(id).constant;
    return c && c->dims.size() == 1 && graph.value(node.inputs[0]).shape->back().is_constant(c->dims[0]);
  };
  if (!l.is_decoder() || !over_last || !only_y || graph.value(node.inputs[0]).dtype != DType::kF32 ||
      !fits(node.input(1)) || !fits(node.input(2)) || !(node.attributes.get(key::kEpsilon) >= 0))
    return l.emit_generic(node);
  Variant variant{.code = OpCode::kNorm};
  variant.attributes.set(key::kRms, int64_t{node.op == Op::kRmsNorm});
  variant.attributes.set(key::kEpsilon, node.attributes.get(key::kEpsilon));
  l.emit(node.name, variant,
         {l.read(node.inputs[0]), l.read(node.input(1)), l.read(node.input(2)), l.write(node.outputs[0])});
}

void lower_rowwise(Lowering& l, const Node& node) {
  const ValueId x = node.inputs[0];
  const bool over_last = node.attributes.get(key::kAxis) + 1 == rank_of(l.graph(), x);
  if (!l.is_decoder() || !over_last || l.graph().value(x).dtype != DType::kF32) return l.emit_generic(node);
  const double parameter = rowwise::parameter_of(*rowwise::row_of(node.op), node.attributes);
  l.emit(node.name, {.code = OpCode::kRowwise, .op = node.op, .attributes = {{key::kParameter, parameter}}},
         {l.read(x), l.write(node.outputs[0])});
}

}  // namespace

std::vector<OpRule> norm_rules() {
  std::vector<OpRule> rules = {{Op::kLayerNorm, leading_axes_loops, false, lower_norm},
                               {Op::kRmsNorm, leading_axes_loops, false, lower_norm}};
  for (const rowwise::Row& row : rowwise::rows())
    rules.push_back({row.op, other_axes_loops, false, lower_rowwise});
  return rules;
}

}  // namespace ark
