// Normalizations, and com.microsoft's fusions of them with residual sums and embeddings.
#include <algorithm>

#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

// ONNX Runtime's default for the norms with a residual sum inside; the plain ones have ONNX's 1e-5.
constexpr double kSkipEpsilon = 1e-12;

// Scale or bias with one element for each that is normalized, where these are known.
ValueId row_operand(OpContext& c, ValueId operand, ValueId x, int64_t axis) {
  if (operand == kNoValue || !value_of(c, operand).shape) return operand;
  const Shape target(shape_of(c, x).begin() + axis, shape_of(c, x).end()), have = shape_of(c, operand);
  const Expr wanted = element_count(target), given = element_count(have);
  if (!wanted.constant() || !given.constant() || have == target || *given.constant() > *wanted.constant())
    return operand;
  if (wanted == given) return reshape(c, operand, target);
  return c.emit(Op::kExpand, {operand}, {{key::kShape, target}});
}

// Whether the operand differs along axes before those that are normalized: ONNX Runtime broadcasts it to x, as one
// scale for each head.
bool reaches_further(OpContext& c, ValueId operand, ValueId x, int64_t axis) {
  if (operand == kNoValue || !value_of(c, operand).shape) return false;
  const Shape& have = shape_of(c, operand);
  const auto normalized = static_cast<std::size_t>(rank_of(c, x) - axis);
  return have.size() > normalized &&
         std::any_of(have.begin(), have.end() - static_cast<std::ptrdiff_t>(normalized),
                     [](const Expr& size) { return !size.is_constant(1); });
}
// 1 for every element that is normalized.
ValueId ones_for(OpContext& c, ValueId x, int64_t axis) {
  Shape target(shape_of(c, x).begin() + axis, shape_of(c, x).end());
  return c.emit(Op::kExpand, {scalar(c, 1, dtype_of(c, x))}, {{key::kShape, std::move(target)}});
}

// Normalizes x over axis..rank-1 and fills outputs y, mean?, inv_std? of the context.
void emit_layer_norm(OpContext& c, ValueId x, ValueId scale, ValueId bias, int64_t axis,
                     double default_epsilon) {
  const int count = c.wants_output(1) || c.wants_output(2) ? 3 : 1;
  const bool apart = reaches_further(c, scale, x, axis) || reaches_further(c, bias, x, axis);
  auto results =
      c.emit_many(Op::kLayerNorm,
                  {x, apart ? ones_for(c, x, axis) : row_operand(c, scale, x, axis),
                   apart ? kNoValue : row_operand(c, bias, x, axis)},
                  {{key::kAxis, axis}, {key::kEpsilon, c.attr_float("epsilon", default_epsilon)}}, count);
  if (apart) results[0] = binary(c, Op::kMul, results[0], scale);
  if (apart && bias != kNoValue) results[0] = binary(c, Op::kAdd, results[0], bias);
  for (std::size_t i = 0; i < results.size() && i < c.outputs.size(); ++i)
    if (c.wants_output(i)) c.outputs[i] = results[i];
}

void layer_norm(OpContext& c) {
  emit_layer_norm(c, c.input(0), c.input(1), optional_input(c, 2), c.axis(c.attr_int("axis", -1), c.rank(0)),
                  1e-5f);
}

// Statistics that the node names as outputs, [..., 1] in f32. Files name them without reading them, so they
// are nodes of their own, which die if nothing reads them.
ValueId mean_over(OpContext& c, ValueId x, int64_t axis) {
  std::vector<int64_t> axes;
  for (int64_t i = axis; i < rank_of(c, x); ++i) axes.push_back(i);
  return c.emit(Op::kReduceMean, {x}, {{key::kAxes, axes}, {key::kKeepdims, 1}});
}
ValueId inverse_deviation(OpContext& c, ValueId x, int64_t axis, double epsilon) {
  const ValueId wide = cast(c, x, DType::kF32), square = mean_over(c, binary(c, Op::kMul, wide, wide), axis);
  return c.emit(Op::kRsqrt, {binary(c, Op::kAdd, square, scalar(c, epsilon, DType::kF32))});
}

ValueId emit_rms_norm(OpContext& c, ValueId x, ValueId scale, int64_t axis, double epsilon) {
  const bool apart = reaches_further(c, scale, x, axis);
  const ValueId y = c.emit(Op::kRmsNorm, {x, apart ? ones_for(c, x, axis) : row_operand(c, scale, x, axis)},
                           {{key::kAxis, axis}, {key::kEpsilon, epsilon}});
  return apart ? binary(c, Op::kMul, y, scale) : y;
}

// RMSNormalization (opset 23) and ONNX Runtime's SimplifiedLayerNormalization: (x, scale) -> (y, inv_std?).
void rms_norm(OpContext& c) {
  const int64_t axis = c.axis(c.attr_int("axis", -1), c.rank(0));
  const double epsilon = c.attr_float("epsilon", 1e-5f);
  c.outputs[0] = emit_rms_norm(c, c.input(0), c.input(1), axis, epsilon);
  if (c.wants_output(1)) c.outputs[1] = inverse_deviation(c, c.input(0), axis, epsilon);
}

// com.microsoft: (input, skip, scale, bias?, row bias?) -> (y, mean?, inv_std?, sum?).
ValueId residual_sum(OpContext& c, std::size_t bias) {
  const ValueId sum = add_input(c, binary(c, Op::kAdd, c.input(0), c.input(1)), bias);
  if (c.wants_output(3)) c.outputs[3] = sum;
  return sum;
}

void skip_layer_norm(OpContext& c) {
  const ValueId sum = residual_sum(c, 4);
  emit_layer_norm(c, sum, c.input(2), optional_input(c, 3), c.rank(0) - 1, kSkipEpsilon);
}

void skip_rms_norm(OpContext& c) {  // (input, skip, scale, row bias?)
  const ValueId sum = residual_sum(c, 3);
  const int64_t axis = c.rank(0) - 1;
  const double epsilon = c.attr_float("epsilon", kSkipEpsilon);
  c.outputs[0] = emit_rms_norm(c, sum, c.input(2), axis, epsilon);
  if (c.wants_output(1)) c.outputs[1] = mean_over(c, cast(c, sum, DType::kF32), axis);
  if (c.wants_output(2)) c.outputs[2] = inverse_deviation(c, sum, axis, epsilon);
}

ValueId row_of(OpContext& c, ValueId table, ValueId ids) {
  return c.emit(Op::kGather, {table, ids}, {{key::kAxis, 0}});
}

// (ids, segments?, words, positions, segment table?, scale, bias, mask?, position ids?)
// -> (y, mask index [B] i32, sum of the embeddings?)
void embed_layer_norm(OpContext& c) {
  const ValueId ids = c.input(0);
  const Shape shape = shape_of(c, ids);
  if (shape.size() != 2) c.fail("token ids must have rank 2");
  const ValueId positions = c.has_input(8) ? c.input(8) : range(c, 0, shape[1]);
  ValueId sum = binary(c, Op::kAdd, row_of(c, c.input(2), ids), row_of(c, c.input(3), positions));
  if (c.has_input(1)) sum = binary(c, Op::kAdd, sum, row_of(c, c.input(4), c.input(1)));
  c.outputs[0] = c.emit(Op::kLayerNorm, {sum, c.input(5), c.input(6)},
                        {{key::kAxis, 2}, {key::kEpsilon, c.attr_float("epsilon", 1e-12f)}});
  if (c.wants_output(2)) c.outputs[2] = sum;
  if (!c.wants_output(1)) return;
  if (c.has_input(7)) {
    const ValueId ones = cast(c, cast(c, c.input(7), DType::kBool), DType::kI32);
    c.outputs[1] =
        c.emit(Op::kReduceSum, {ones}, {{key::kAxes, std::vector<int64_t>{1}}, {key::kKeepdims, 0}});
  } else {
    c.outputs[1] = c.emit(Op::kExpand, {scalar(c, 0, DType::kI32)}, {{key::kShape, Shape{shape[0]}}});
  }
}

// What ONNX Runtime's quantizer makes of it: tables, scale and bias in 8 bits, each with one scale (inputs 8 to 12) and
// one zero point (13 to 17).
void quantized_embed_layer_norm(OpContext& c) {
  std::vector<ValueId> in(c.inputs.begin(),
                          c.inputs.begin() + std::min<std::ptrdiff_t>(8, std::ssize(c.inputs)));
  for (std::size_t i = 2; i < 7; ++i) {
    if (!c.has_input(i)) continue;
    std::vector<ValueId> operands{c.input(i), reshape(c, c.input(i + 6), {})};
    if (c.has_input(i + 11)) operands.push_back(reshape(c, c.input(i + 11), {}));
    in[i] = c.emit(Op::kDequantizeLinear, operands,
                   {{key::kAxis, 0}, {key::kBlockSize, 0}, {key::kTo, static_cast<int64_t>(DType::kF32)}});
  }
  OpContext plain(c.graph, c.node, c.opset, c.label, in);
  embed_layer_norm(plain);
  c.outputs = plain.outputs;
}

// (x, scale, bias, running mean, running variance) -> (y, and the running statistics gone on with): by statistics of x
// itself, as layers that standardize their weights are written (BiT, NFNet).
void batch_norm_in_training(OpContext& c) {
  const ValueId x = c.input(0), wide = cast(c, x, DType::kF32);
  if (c.rank(0) < 2) c.fail("BatchNormalization in training mode needs channels at axis 1");
  std::vector<int64_t> axes{0};
  for (int64_t i = 2; i < c.rank(0); ++i) axes.push_back(i);
  const auto mean_of = [&](ValueId v, int64_t keepdims) {
    return c.emit(Op::kReduceMean, {v}, {{key::kAxes, axes}, {key::kKeepdims, keepdims}});
  };
  const ValueId apart = binary(c, Op::kSub, wide, mean_of(wide, 1));
  const ValueId statistics[] = {mean_of(wide, 0), mean_of(binary(c, Op::kMul, apart, apart), 0)};
  c.outputs[0] = c.emit(Op::kBatchNorm, {x, c.input(1), c.input(2), statistics[0], statistics[1]},
                        {{key::kEpsilon, c.attr_float("epsilon", 1e-5f)}});
  const double momentum = c.attr_float("momentum", 0.9f);
  for (std::size_t i = 0; i < 2; ++i) {
    if (!c.wants_output(1 + i)) continue;
    const auto part = [&](ValueId v, double share) {
      return binary(c, Op::kMul, cast(c, v, DType::kF32), scalar(c, share, DType::kF32));
    };
    const ValueId next =
        binary(c, Op::kAdd, part(c.input(3 + i), momentum), part(statistics[i], 1 - momentum));
    c.outputs[1 + i] = cast(c, next, dtype_of(c, c.input(3 + i)));
  }
}

void batch_norm(OpContext& c) {
  if (c.attr_int("training_mode", 0)) return batch_norm_in_training(c);
  if (!c.attr_int("spatial", 1)) c.unsupported("BatchNormalization with spatial=0");
  for (std::size_t i = 1; i < c.node.outputs.size(); ++i)
    if (c.wants_output(i) && c.opset >= 14) c.unsupported("running statistics as outputs are for training");
  c.outputs[0] = c.emit(Op::kBatchNorm, {c.input(0), c.input(1), c.input(2), c.input(3), c.input(4)},
                        {{key::kEpsilon, c.attr_float("epsilon", 1e-5f)}});
}

void instance_norm(OpContext& c) {
  if (c.rank(0) < 2) c.fail("InstanceNormalization needs channels at axis 1");
  c.outputs[0] = c.emit(Op::kGroupNorm, {c.input(0), c.input(1), c.input(2)},
                        {{key::kEpsilon, c.attr_float("epsilon", 1e-5f)}});
}

// Opset 21: scale and bias a channel; opset 18: a group.
void group_norm(OpContext& c) {
  const int64_t groups = c.attr_int("num_groups", 0);
  std::vector<ValueId> in{c.input(0), c.input(1), c.input(2)};
  if (c.rank(0) < 2) c.fail("GroupNormalization needs channels at axis 1");
  const Expr channels = shape_of(c, in[0])[1];
  if (groups <= 0 || channels.constant().value_or(0) % groups != 0)
    c.fail("num_groups does not divide the channels");
  for (std::size_t i = 1; c.opset < 21 && i < 3; ++i) {
    const ValueId spread = c.emit(Op::kExpand, {reshape(c, in[i], {Expr(groups), Expr(1)})},
                                  {{key::kShape, Shape{groups, floordiv(channels, Expr(groups))}}});
    in[i] = reshape(c, spread, {channels});
  }
  c.outputs[0] =
      c.emit(Op::kGroupNorm, in, {{key::kGroups, groups}, {key::kEpsilon, c.attr_float("epsilon", 1e-5f)}});
}

void lp_norm(OpContext& c) {
  const int64_t p = c.attr_int("p", 2);
  if (p != 1 && p != 2) c.fail("p must be 1 or 2, not " + std::to_string(p));
  c.outputs[0] = c.emit(Op::kLpNorm, {c.input(0)},
                        {{key::kAxis, c.axis(c.attr_int("axis", -1), c.rank(0))}, {key::kP, p}});
}

void lrn(OpContext& c) {
  const int64_t size = c.attr_int("size", 0);
  if (size <= 0 || size % 2 == 0) c.fail("size must be positive and odd, not " + std::to_string(size));
  c.outputs[0] = c.emit(Op::kLrn, {c.input(0)},
                        {{key::kAlpha, c.attr_float("alpha", 1e-4f)},
                         {key::kBeta, c.attr_float("beta", 0.75)},
                         {key::kBias, c.attr_float("bias", 1)},
                         {key::kSize, size}});
}

// (x - mean) / (sqrt(mean of squares - mean^2) + 1e-9), as the standard's function body has it.
void mean_variance_norm(OpContext& c) {
  const ValueId x = c.input(0);
  const DType type = dtype_of(c, x);
  std::vector<int64_t> axes = c.attr_ints("axes", {0, 2, 3});
  for (int64_t& a : axes) a = c.axis(a, c.rank(0));
  const auto mean_of = [&](ValueId v) {
    return c.emit(Op::kReduceMean, {v}, {{key::kAxes, axes}, {key::kKeepdims, 1}});
  };
  const ValueId mean = mean_of(x), squares = mean_of(binary(c, Op::kMul, x, x));
  const ValueId deviation =
      c.emit(Op::kSqrt, {binary(c, Op::kSub, squares, binary(c, Op::kMul, mean, mean))});
  c.outputs[0] = binary(c, Op::kDiv, binary(c, Op::kSub, x, mean),
                        binary(c, Op::kAdd, deviation, scalar(c, 1e-9, type)));
}

}  // namespace

std::span<const Entry> normalization_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "LayerNormalization", layer_norm},
      {kOnnx, "RMSNormalization", rms_norm},
      {kOnnx, "SimplifiedLayerNormalization", rms_norm},
      {kMicrosoft, "SimplifiedLayerNormalization", rms_norm},
      {kMicrosoft, "SkipLayerNormalization", skip_layer_norm},
      {kMicrosoft, "SkipSimplifiedLayerNormalization", skip_rms_norm},
      {kMicrosoft, "EmbedLayerNormalization", embed_layer_norm},
      {kMicrosoft, "QEmbedLayerNormalization", quantized_embed_layer_norm},
      {kOnnx, "BatchNormalization", batch_norm},
      {kOnnx, "InstanceNormalization", instance_norm},
      {kOnnx, "GroupNormalization", group_norm},
      {kOnnx, "LpNormalization", lp_norm},
      {kOnnx, "LRN", lrn},
      {kOnnx, "MeanVarianceNormalization", mean_variance_norm},
  };
  return kTable;
}

}  // namespace ark::ops
