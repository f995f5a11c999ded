// Operator -> rule. What is not listed runs whole on every rank, through its kernel.
#include <array>

#include "engine/partition/op_rule.h"

namespace ark {

// One file of engine/ops each.
std::vector<OpRule> collective_rules(), expert_matmul_rules(), gather_rules(), matmul_rules(),
    movement_rules(), norm_rules(), paged_attention_rules(), rotary_rules(), select_rows_rules();

namespace {

constexpr auto kOps = static_cast<std::size_t>(Op::kCount);

std::array<OpRule, kOps> build() {
  std::array<OpRule, kOps> rules;
  for (std::size_t i = 0; i < kOps; ++i) {
    rules[i].op = static_cast<Op>(i);
    if (is_pointwise(rules[i].op)) rules[i].loops = pointwise_loops;
    if (is_reduction(rules[i].op)) rules[i].loops = reduce_loops;
  }
  for (const auto family : {collective_rules, expert_matmul_rules, gather_rules, matmul_rules, movement_rules,
                            norm_rules, paged_attention_rules, rotary_rules, select_rows_rules}) {
    for (const OpRule& rule : family()) rules[static_cast<std::size_t>(rule.op)] = rule;
  }
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
