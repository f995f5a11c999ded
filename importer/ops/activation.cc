// Activation functions that are no row of base/ir/pointwise.h, and com.microsoft's fusions of them with a bias.
#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

// ONNX's Shrink, in terms of comparisons. The attributes are real numbers, also for integers: as one of their type,
// -1.5 would be 255 and half a bias none.
void shrink(OpContext& c) {
  const DType type = dtype_of(c, c.input(0)), t = is_floating(type) ? type : DType::kF64;
  const ValueId x = cast(c, c.input(0), t);
  const double lambda = c.attr_float("lambd", 0.5), bias = c.attr_float("bias", 0);
  const ValueId below = binary(c, Op::kLess, x, scalar(c, -lambda, t)),
                above = binary(c, Op::kGreater, x, scalar(c, lambda, t));
  const ValueId high =
      c.emit(Op::kWhere, {above, binary(c, Op::kSub, x, scalar(c, bias, t)), scalar(c, 0, t)});
  const ValueId y = c.emit(Op::kWhere, {below, binary(c, Op::kAdd, x, scalar(c, bias, t)), high});
  c.outputs[0] = cast(c, y, type);
}

void sigmoid_of(OpContext& c, double alpha) {  // x sigmoid(alpha x)
  c.outputs[0] = alpha == 1 ? c.emit(Op::kSilu, {c.input(0)})
                            : c.emit(Op::kQuickGelu, {c.input(0)}, {{key::kAlpha, alpha}});
}
void swish(OpContext& c) { sigmoid_of(c, c.attr_float("alpha", 1)); }
void swiglu(OpContext& c) {
  swish(c);
  c.outputs[0] = binary(c, Op::kMul, c.outputs[0], c.input(1));
}
void quick_gelu(OpContext& c) {
  sigmoid_of(c, c.attr_float("alpha", pointwise::row_of(Op::kQuickGelu)->p.fallback));
}

void gelu_with_bias(OpContext& c, const char* approximate) {
  c.outputs[0] = c.emit(Op::kGelu, {add_input(c, c.input(0), 1)}, {{key::kApproximate, approximate}});
}
void bias_gelu(OpContext& c) { gelu_with_bias(c, "none"); }
void fast_gelu(OpContext& c) { gelu_with_bias(c, "tanh"); }

}  // namespace

std::span<const Entry> activation_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "Shrink", shrink},
      {kOnnx, "Swish", swish},
      {kOnnx, "SwiGLU", swiglu},
      {kMicrosoft, "Gelu", by_row},
      {kMicrosoft, "BiasGelu", bias_gelu},
      {kMicrosoft, "FastGelu", fast_gelu},
      {kMicrosoft, "QuickGelu", quick_gelu},
  };
  return kTable;
}

}  // namespace ark::ops
