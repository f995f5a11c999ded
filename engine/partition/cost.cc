#include "engine/partition/cost.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/ir/quantized.h"
#include "engine/partition/op_rule.h"

namespace ark {

double CostModel::all_reduce(double bytes, int n) const {
  return per_message * (n - 1) + per_link_byte * bytes * (n - 1);
}

double CostModel::all_gather(double bytes, int n) const {
  return per_message * (n - 1) + per_link_byte * bytes * (n - 1) / n;
}

double priced_elements(const CostModel& costs, const Graph& graph, ValueId value) {
  double elements = 1;
  for (const Expr& e : shape_of(graph, value)) {
    if (const auto constant = e.constant()) {
      elements *= static_cast<double>(*constant);
      continue;
    }
    SymbolValues values;
    for (const std::string& s : e.symbols()) values[s] = s == "rows" ? costs.rows : costs.tokens;
    elements *= static_cast<double>(e.evaluate(values));
  }
  return elements;
}

double priced_bytes(const CostModel& costs, const Graph& graph, ValueId value) {
  const Value& v = graph.value(value);
  const int bits = v.constant && v.constant->quantized ? v.constant->quantized->bits : bits_of(v.dtype);
  return priced_elements(costs, graph, value) * bits / 8;
}

double held_byte_price(const CostModel& costs, const Graph& graph) {
  std::vector<double> sizes;
  for (const Node& node : graph.nodes) {
    if (node.op != Op::kMatMul || !graph.value(node.inputs[1]).constant) continue;
    sizes.push_back(priced_bytes(costs, graph, node.inputs[1]));
  }
  if (sizes.empty()) return 0;
  std::nth_element(sizes.begin(), sizes.begin() + static_cast<int64_t>(sizes.size() / 2), sizes.end());
  const double bytes = std::max(sizes[sizes.size() / 2], 1.0);
  const double output = static_cast<double>(costs.tokens) * std::sqrt(bytes / 4) * 4;  // of a square matrix
  return costs.collectives_per_matrix * costs.all_reduce(output, 2) / bytes;
}

double priced_flops(const CostModel& costs, const Graph& graph, const Node& node) {
  const double out = node.outputs[0] == kNoValue ? 0 : priced_elements(costs, graph, node.outputs[0]);
  const bool is_summed = node.op == Op::kExpertMatMul && node.inputs[2] != kNoValue;
  if (node.op != Op::kMatMul && node.op != Op::kExpertMatMul) return out;
  const Shape& x = shape_of(graph, node.inputs[0]);
  const auto k = x.empty() ? std::nullopt : x.back().constant();
  const auto experts = is_summed ? shape_of(graph, node.inputs[2]).back().constant() : std::nullopt;
  return 2 * out * static_cast<double>(k.value_or(1) * experts.value_or(1));
}

}  // namespace ark
