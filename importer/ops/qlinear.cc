// Operators on bytes with scales (the standard's older ones, and ONNX Runtime's QOperator format), by their definition:
// the operator on dequantized operands, quantized again.
#include <algorithm>

#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

constexpr std::string_view kQLinear = "QLinear";

// The standard's operator on these operands: QLinearAdd's is Add.
ValueId plain_result(OpContext& c, std::vector<ValueId> operands, int64_t opset = 18) {
  return standard_results(c, c.node.op_type.substr(kQLinear.size()), std::move(operands), opset)[0];
}

// Operand i of those that lie as (x, scale, zero point) from input `first` on.
ValueId scaled_operand(OpContext& c, std::size_t i, std::size_t first = 0) {
  return dequantized(c, first + 3 * i, first + 3 * i + 1, first + 3 * i + 2, 0);
}

// (x, x_scale, x_zero?, y_scale, y_zero?)
void qlinear_unary(OpContext& c) {
  const bool last = c.attr_int("channels_last", 0) != 0;
  ValueId x = scaled_operand(c, 0);
  if (last) x = turn_channels(c, x, false);
  ValueId y = plain_result(c, {x});
  if (last) y = turn_channels(c, y, true);
  c.outputs[0] = quantized(c, y, 3, 4, dtype_of(c, c.input(0)));
}

// (a, a_scale, a_zero?, b, b_scale, b_zero?, y_scale, y_zero?)
void qlinear_binary(OpContext& c) {
  const ValueId y = plain_result(c, {scaled_operand(c, 0), scaled_operand(c, 1)});
  c.outputs[0] = quantized(c, y, 6, 7, dtype_of(c, c.input(0)));
}

void qlinear_softmax(OpContext& c) {
  const ValueId y = plain_result(c, {scaled_operand(c, 0)}, c.attr_int("opset", 13));
  c.outputs[0] = quantized(c, y, 3, 4, dtype_of(c, c.input(0)));
}

// (condition, a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)
void qlinear_where(OpContext& c) {
  c.outputs[0] =
      quantized(c, plain_result(c, {c.input(0), scaled_operand(c, 0, 1), scaled_operand(c, 1, 1)}), 7, 8);
}

// (y_scale, y_zero, (x, x_scale, x_zero)...)
void qlinear_concat(OpContext& c) {
  std::vector<ValueId> operands;
  for (std::size_t i = 0; 2 + 3 * i < c.inputs.size(); ++i) operands.push_back(scaled_operand(c, i, 2));
  c.outputs[0] = quantized(c, plain_result(c, std::move(operands)), 0, 1);
}

// As qlinear_binary, with a scale for each row of a and column of b.
void qlinear_matmul(OpContext& c) {
  const ValueId a = dequantized(c, 0, 1, 2, std::max(c.rank(0) - 2, 0));
  const ValueId b = dequantized(c, 3, 4, 5, std::max(c.rank(3) - 1, 0));
  c.outputs[0] = quantized(c, c.emit(Op::kMatMul, {a, b}), 6, 7);
}

// (a, a_scale, a_zero, b, b_scale, b_zero, bias i32 of scale a_scale * b_scale?, y_scale?, y_zero?), f32 where
// there is no y_scale.
void qgemm(OpContext& c) {
  const bool b_turned = c.attr_int("transB", 0) != 0;
  Attributes attributes;
  if (c.attr_int("transA", 0)) attributes.set(key::kTransA, 1);
  if (b_turned) attributes.set(key::kTransB, 1);
  ValueId y =
      c.emit(Op::kMatMul, {scaled_operand(c, 0), dequantized(c, 3, 4, 5, b_turned ? 0 : 1)}, attributes);
  if (c.has_input(6)) {
    const ValueId scale = binary(c, Op::kMul, c.input(1), c.input(4));
    y = binary(c, Op::kAdd, y, binary(c, Op::kMul, cast(c, c.inputs[6], DType::kF32), scale));
  }
  if (const double alpha = c.attr_float("alpha", 1); alpha != 1)
    y = binary(c, Op::kMul, y, scalar(c, alpha, DType::kF32));
  c.outputs[0] = c.has_input(7) ? quantized(c, y, 7, 8) : y;
}

}  // namespace

std::span<const Entry> qlinear_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "QLinearMatMul", qlinear_matmul},
      {kMicrosoft, "QLinearAdd", qlinear_binary},
      {kMicrosoft, "QLinearMul", qlinear_binary},
      {kMicrosoft, "QLinearSigmoid", qlinear_unary},
      {kMicrosoft, "QLinearLeakyRelu", qlinear_unary},
      {kMicrosoft, "QLinearAveragePool", qlinear_unary},
      {kMicrosoft, "QLinearGlobalAveragePool", qlinear_unary},
      {kMicrosoft, "QLinearSoftmax", qlinear_softmax},
      {kMicrosoft, "QLinearWhere", qlinear_where},
      {kMicrosoft, "QLinearConcat", qlinear_concat},
      {kMicrosoft, "QGemm", qgemm},
  };
  return kTable;
}

}  // namespace ark::ops
