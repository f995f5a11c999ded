#include "base/ir/payloads.h"

#include "base/ir/keys.h"
#include "base/ir/quantized.h"

namespace ark {
namespace {

// Whether an operand describes other numbers: scales, zeros, and angles of positions.
bool is_description(Op op, std::size_t operand) {
  switch (op) {
    case Op::kQuantizeLinear:
    case Op::kDequantizeLinear:
    case Op::kRotary:
      return operand > 0;
    case Op::kMatMulNBits:
    case Op::kMatMulInteger:
    case Op::kConvInteger:
      return operand > 1;
    default:
      return false;
  }
}

void add_totals(const Graph& graph, PayloadSet& seen, WeightTotals& totals) {
  std::set<ValueId> descriptions;
  std::map<ValueId, int64_t> packed;  // elements of matrices that are packed in bytes
  for (const Node& node : graph.nodes) {
    if (node.removed) continue;
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      if (is_description(node.op, i)) descriptions.insert(node.inputs[i]);
    if (node.op == Op::kMatMulNBits)
      packed[node.inputs[1]] = node.attributes.get(key::kK) * node.attributes.get(key::kN);
    for (const auto& body : node.subgraphs) add_totals(*body, seen, totals);
  }
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const ConstantPtr& constant = graph.values[v].constant;
    if (!constant) continue;
    const auto fresh = seen.add(*constant);
    for (const auto& [type, bytes] : fresh) totals.bytes[type] += bytes;
    const auto id = static_cast<ValueId>(v);
    const bool is_weight = is_floating(constant->dtype) || bits_of(constant->dtype) <= 8;
    if (fresh.empty() || !is_weight || constant->dtype == DType::kBool || descriptions.contains(id)) continue;
    const auto found = packed.find(id);
    totals.parameters += found != packed.end() ? found->second : element_count(constant->stored_dims);
  }
}

}  // namespace

std::map<DType, int64_t> PayloadSet::add(const Constant& constant) {
  std::map<DType, int64_t> fresh;
  if (constant.quantized) {
    const Quantized& q = *constant.quantized;
    for (const ConstantPtr& part : {q.codes, q.scales, q.zeros, q.offsets}) {
      if (!part) continue;
      // Bytes of packed codes are shown as what they hold.
      const bool is_packed = (part == q.codes || part == q.zeros) && q.bits < 8;
      for (const auto& [type, bytes] : add(*part))
        fresh[!is_packed ? type : q.bits == 4 ? DType::kU4 : DType::kU2] += bytes;
    }
  } else if (seen_.insert({payload_place(constant), constant.offset}).second) {
    fresh[constant.dtype] +=
        constant.file ? constant.bytes : bytes_of(constant.dtype, element_count(constant.stored_dims));
  }
  return fresh;
}

WeightTotals weight_totals(const Graph& graph) {
  PayloadSet seen;
  WeightTotals totals;
  add_totals(graph, seen, totals);
  return totals;
}

}  // namespace ark
