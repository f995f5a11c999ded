// Activation functions, and com.microsoft's fusions of them with a bias.
#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

template <Op op>
void plain(OpContext& c) {
  c.outputs[0] = c.emit(op, {c.input(0)});
}

void with_alpha(OpContext& c, Op op, double alpha) {
  c.outputs[0] = c.emit(op, {c.input(0)}, {{key::kAlpha, c.attr_float("alpha", alpha)}});
}
void elu(OpContext& c) { with_alpha(c, Op::kElu, 1); }
void celu(OpContext& c) { with_alpha(c, Op::kCelu, 1); }
void leaky_relu(OpContext& c) { with_alpha(c, Op::kLeakyRelu, 0.01f); }
void thresholded_relu(OpContext& c) { with_alpha(c, Op::kThresholdedRelu, 1); }

void selu(OpContext& c) {
  c.outputs[0] = c.emit(Op::kSelu, {c.input(0)},
                        {{key::kAlpha, c.attr_float("alpha", 1.67326319217681884765625)},
                         {key::kGamma, c.attr_float("gamma", 1.05070102214813232421875)}});
}
void hard_sigmoid(OpContext& c) {
  c.outputs[0] =
      c.emit(Op::kHardSigmoid, {c.input(0)},
             {{key::kAlpha, c.attr_float("alpha", 0.2f)}, {key::kBeta, c.attr_float("beta", 0.5)}});
}
void prelu(OpContext& c) {
  ValueId slope = c.input(1);
  // A slope of [C] belongs to axis 1; later opsets broadcast it from the right.
  if (c.opset < 7 && rank_of(c, slope) == 1 && c.rank(0) > 2) {
    Shape shape(static_cast<std::size_t>(c.rank(0)) - 1, Expr(1));
    shape[0] = shape_of(c, slope)[0];
    slope = reshape(c, slope, shape);
  }
  c.outputs[0] = binary(c, Op::kPRelu, c.input(0), slope);
}

// x >= 0 ? x - lambda... : ONNX's Shrink, in terms of comparisons.
void shrink(OpContext& c) {
  const ValueId x = c.input(0);
  const DType t = dtype_of(c, x);
  const double lambda = c.attr_float("lambd", 0.5), bias = c.attr_float("bias", 0);
  const ValueId below = binary(c, Op::kLess, x, scalar(c, -lambda, t)),
                above = binary(c, Op::kGreater, x, scalar(c, lambda, t));
  const ValueId high =
      c.emit(Op::kWhere, {above, binary(c, Op::kSub, x, scalar(c, bias, t)), scalar(c, 0, t)});
  c.outputs[0] = c.emit(Op::kWhere, {below, binary(c, Op::kAdd, x, scalar(c, bias, t)), high});
}

void swish(OpContext& c) {
  const double alpha = c.attr_float("alpha", 1);
  c.outputs[0] = alpha == 1 ? c.emit(Op::kSilu, {c.input(0)})
                            : c.emit(Op::kQuickGelu, {c.input(0)}, {{key::kAlpha, alpha}});
}

ValueId gelu_of(OpContext& c, ValueId x, const std::string& approximate) {
  return c.emit(Op::kGelu, {x}, {{key::kApproximate, approximate}});
}
void gelu(OpContext& c) {
  const std::string approximate = c.attr_string("approximate", "none");
  if (approximate != "none" && approximate != "tanh") c.fail("approximate must be none or tanh");
  c.outputs[0] = gelu_of(c, c.input(0), approximate);
}
void bias_gelu(OpContext& c) { c.outputs[0] = gelu_of(c, add_input(c, c.input(0), 1), "none"); }
void fast_gelu(OpContext& c) { c.outputs[0] = gelu_of(c, add_input(c, c.input(0), 1), "tanh"); }
void quick_gelu(OpContext& c) {
  const double alpha = c.attr_float("alpha", 1.702f);
  c.outputs[0] = alpha == 1 ? c.emit(Op::kSilu, {c.input(0)})
                            : c.emit(Op::kQuickGelu, {c.input(0)}, {{key::kAlpha, alpha}});
}

}  // namespace

std::span<const Entry> activation_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "Sigmoid", plain<Op::kSigmoid>},
      {kOnnx, "Relu", plain<Op::kRelu>},
      {kOnnx, "Softplus", plain<Op::kSoftplus>},
      {kOnnx, "Softsign", plain<Op::kSoftsign>},
      {kOnnx, "HardSwish", plain<Op::kHardSwish>},
      {kOnnx, "Mish", plain<Op::kMish>},
      {kOnnx, "Selu", selu},
      {kOnnx, "Elu", elu},
      {kOnnx, "Celu", celu},
      {kOnnx, "LeakyRelu", leaky_relu},
      {kOnnx, "ThresholdedRelu", thresholded_relu},
      {kOnnx, "HardSigmoid", hard_sigmoid},
      {kOnnx, "PRelu", prelu},
      {kOnnx, "Shrink", shrink},
      {kOnnx, "Swish", swish},
      {kOnnx, "Gelu", gelu},
      {kMicrosoft, "Gelu", gelu},
      {kMicrosoft, "BiasGelu", bias_gelu},
      {kMicrosoft, "FastGelu", fast_gelu},
      {kMicrosoft, "QuickGelu", quick_gelu},
  };
  return kTable;
}

}  // namespace ark::ops
