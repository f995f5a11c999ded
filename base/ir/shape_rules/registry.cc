#include <array>

#include "base/ir/rowwise_host.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {

// One file of this folder each.
std::span<const Entry> pointwise_rules(), movement_rules(), indexing_rules(), reduction_rules(),
    product_rules(), window_rules(), quantized_rules(), attention_rules(), control_rules(), recurrent_rules(),
    vision_rules(), signal_rules();

Rule rule_of(Op op) {
  static const auto rules = [] {
    std::array<Rule, static_cast<std::size_t>(Op::kCount)> by_op{};
    for (const rowwise::Row& row : rowwise::rows()) by_op[static_cast<std::size_t>(row.op)] = along_axis;
    for (const auto& family : {pointwise_rules(), movement_rules(), indexing_rules(), reduction_rules(),
                               product_rules(), window_rules(), quantized_rules(), attention_rules(),
                               control_rules(), recurrent_rules(), vision_rules(), signal_rules()})
      for (const auto& [op, rule] : family) by_op[static_cast<std::size_t>(op)] = rule;
    return by_op;
  }();
  return op < Op::kCount ? rules[static_cast<std::size_t>(op)] : nullptr;
}

}  // namespace ark::shape_rules
