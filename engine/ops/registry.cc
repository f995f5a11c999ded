// Operator -> rule. What is not listed runs whole on every rank, through its kernel.
#include <array>

#include "engine/ops/loops.h"
#include "engine/ops/rules.h"

namespace ark {
namespace {

constexpr auto kOps = static_cast<std::size_t>(Op::kCount);

std::array<OpRule, kOps> build() {
  std::array<OpRule, kOps> rules;
  for (std::size_t i = 0; i < kOps; ++i) {
    rules[i].op = static_cast<Op>(i);
    if (is_pointwise(rules[i].op)) rules[i].loops = pointwise_loops;
  }
  const auto set = [&](const OpRule& rule) { rules[static_cast<std::size_t>(rule.op)] = rule; };
  for (const Op op : {Op::kSoftmax, Op::kLogSoftmax, Op::kConcat, Op::kSplit, Op::kSlice}) {
    set({op, other_axes_loops});
  }
  for (const Op op :
       {Op::kReduceSum, Op::kReduceMean, Op::kReduceMax, Op::kReduceMin, Op::kReduceProd, Op::kReduceL1,
        Op::kReduceL2, Op::kReduceSumSquare, Op::kReduceLogSum, Op::kReduceLogSumExp}) {
    set({op, reduce_loops});
  }
  set(all_gather_rule());
  set(all_reduce_rule());
  set(expand_rule());
  set(gather_rule());
  set(identity_rule());
  set(layer_norm_rule());
  set(matmul_rule());
  set(paged_attention_rule());
  set(reshape_rule());
  set(rms_norm_rule());
  set(rotary_rule());
  set(select_rows_rule());
  set(transpose_rule());
  return rules;
}

}  // namespace

const OpRule& rule_of(Op op) {
  static const std::array<OpRule, kOps> rules = build();
  return rules[static_cast<std::size_t>(op)];
}

std::vector<Loop> loops_of(const Graph& graph, const Node& node) {
  const OpRule& rule = rule_of(node.op);
  if (!rule.loops || node.inputs.empty() || node.inputs[0] == kNoValue || node.outputs[0] == kNoValue)
    return {};
  return rule.loops(graph, node);
}

}  // namespace ark
