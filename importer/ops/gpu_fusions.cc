// com.microsoft's operators that ONNX Runtime's optimizer writes for GPUs: of image generators (GroupNorm with channels
// last, BiasSplitGelu) and of T5's and WavLM's position biases.
#include <cmath>

#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

// x [N, ..., C], or [N, C, ...] with channels_last 0; inputs 1 and 2 are scale and bias; activation 1 is SiLU.
ValueId normalized_groups(OpContext& c, ValueId x) {
  const bool last = c.attr_int("channels_last", 1) != 0;
  if (last) x = turn_channels(c, x, false);
  const int64_t groups = c.attr_int("groups", 0), channels = constant_dim(c, x, 1, "the channel axis");
  if (groups <= 0 || channels % groups != 0) c.fail("groups does not divide the channels");
  const DType type = dtype_of(c, x);
  ValueId y = c.emit(Op::kGroupNorm, {x, cast(c, c.input(1), type), cast(c, c.input(2), type)},
                     {{key::kGroups, groups}, {key::kEpsilon, c.attr_float("epsilon", 1e-5f)}});
  if (c.attr_int("activation", 0)) y = c.emit(Op::kSilu, {y});
  return last ? turn_channels(c, y, true) : y;
}
void microsoft_group_norm(OpContext& c) { c.outputs[0] = normalized_groups(c, c.input(0)); }

// (x, scale, bias, skip, channels' bias?) -> (y, sum?); skip may be [N, C] or [N, 1, 1, C].
void skip_group_norm(OpContext& c) {
  ValueId skip = c.input(3);
  if (const Shape shape = shape_of(c, skip); shape.size() == 2)
    skip = reshape(c, skip, {shape[0], Expr(1), Expr(1), shape[1]});
  const ValueId sum = add_input(c, binary(c, Op::kAdd, c.input(0), skip), 4);
  c.outputs[0] = normalized_groups(c, sum);
  if (c.wants_output(1)) c.outputs[1] = sum;
}

void bias_split_gelu(OpContext& c) {
  const ValueId x = add_input(c, c.input(0), 1);
  const auto axis = rank_of(c, x) - 1;
  const Expr half = Expr(constant_dim(c, x, static_cast<std::size_t>(axis), "the last axis") / 2);
  const auto parts = c.emit_many(Op::kSplit, {x}, {{key::kAxis, axis}, {key::kSizes, Shape{half, half}}}, 2);
  c.outputs[0] = binary(c, Op::kMul, parts[0], c.emit(Op::kGelu, {parts[1]}, {{key::kApproximate, "none"}}));
}

void bias_add(OpContext& c) { c.outputs[0] = add_input(c, add_input(c, c.input(0), 1), 2); }

// Image and weights have their channels last.
void nhwc_conv(OpContext& c) {
  std::vector<ValueId> in = c.inputs;
  in.at(0) = turn_channels(c, c.input(0), false);
  in.at(1) = turn_channels(c, c.input(1), false);
  c.outputs[0] = turn_channels(c, standard_results(c, "Conv", in)[0], true);
}

// T5's: (table [buckets, H], queries, keys: how many) -> [1, H, queries, keys]. The table lies in memory by columns,
// one head after the other, whatever its shape says.
void relative_position_bias(OpContext& c) {
  const bool both = c.attr_int("is_bidirectional", 0) != 0;
  const int64_t buckets = constant_dim(c, c.input(0), 0, "the table of buckets") / (both ? 2 : 1),
                exact = buckets / 2, most = c.attr_int("max_distance", 128);
  if (exact < 1 || most <= exact) c.fail("max_distance must be more than the exact buckets");
  const auto whole = [&](int64_t value) { return scalar(c, static_cast<double>(value), DType::kI64); };
  const auto real = [&](double value) { return scalar(c, value, DType::kF32); };
  const auto places = [&](std::size_t i, bool keys) {
    const ValueId count = cast(c, reshape(c, c.input(i), {}), DType::kI64);
    const ValueId row = c.emit(Op::kRange, {whole(0), count, whole(1)});
    const Expr size = shape_of(c, row)[0];
    return reshape(c, row, keys ? Shape{Expr(1), size} : Shape{size, Expr(1)});
  };
  const ValueId ahead = binary(c, Op::kSub, places(2, true), places(1, false));
  const ValueId distance =
      both ? c.emit(Op::kAbs, {ahead}) : binary(c, Op::kMax, c.emit(Op::kNeg, {ahead}), whole(0));
  // Beyond the exact ones a bucket holds distances up to a constant factor.
  const ValueId ratio = binary(c, Op::kDiv, cast(c, binary(c, Op::kMax, distance, whole(1)), DType::kF32),
                               real(static_cast<double>(exact)));
  const double step =
      static_cast<double>(buckets - exact) / std::log(static_cast<double>(most) / static_cast<double>(exact));
  const ValueId wide =
      binary(c, Op::kAdd, whole(exact),
             cast(c, binary(c, Op::kMul, c.emit(Op::kLog, {ratio}), real(step)), DType::kI64));
  ValueId bucket = c.emit(Op::kWhere, {binary(c, Op::kLess, distance, whole(exact)), distance,
                                       binary(c, Op::kMin, wide, whole(buckets - 1))});
  if (both)
    bucket = binary(c, Op::kAdd, bucket,
                    c.emit(Op::kWhere, {binary(c, Op::kGreater, ahead, whole(0)), whole(buckets), whole(0)}));
  Shape table = shape_of(c, c.input(0));
  if (table.size() != 2) c.fail("the table of buckets has rank " + std::to_string(table.size()) + ", not 2");
  std::swap(table[0], table[1]);
  const ValueId bias = c.emit(Op::kGather, {reshape(c, c.input(0), table), bucket}, {{key::kAxis, 1}});
  Shape shape = shape_of(c, bias);
  shape.insert(shape.begin(), Expr(1));
  c.outputs[0] = reshape(c, bias, shape);
}

// WavLM's: (queries [B, S, H * D], their bias, position bias [1, H, S, S], weight [D, 8], bias [8], a [1, H, 1, 1])
void gated_position_bias(OpContext& c) {
  if (c.has_input(6)) c.unsupported("packed tokens; export with padded batches");
  const ValueId query =
      split_heads(c, binary(c, Op::kAdd, c.input(0), c.input(1)), c.attr_int("num_heads", 0));
  const ValueId gates = add_input(c, c.emit(Op::kMatMul, {query, c.input(3)}), 4);
  Shape shape = shape_of(c, gates);
  if (!shape[3].is_constant(8)) c.fail("the weight must have 8 columns");
  shape[3] = Expr(2);
  shape.emplace_back(4);
  const ValueId sums = c.emit(Op::kReduceSum, {reshape(c, gates, shape)},
                              {{key::kAxes, std::vector<int64_t>{4}}, {key::kKeepdims, 0}});
  const auto parts = c.emit_many(Op::kSplit, {c.emit(Op::kSigmoid, {sums})},
                                 {{key::kAxis, 3}, {key::kSizes, Shape{Expr(1), Expr(1)}}}, 2);
  const auto real = [&](double value) { return scalar(c, value, dtype_of(c, query)); };
  const ValueId reach = binary(c, Op::kSub, binary(c, Op::kMul, parts[1], c.input(5)), real(1));
  const ValueId gate = binary(c, Op::kAdd, binary(c, Op::kMul, parts[0], reach), real(2));
  c.outputs[0] = binary(c, Op::kMul, gate, c.input(2));
}

}  // namespace

std::span<const Entry> gpu_fusions_table() {
  static constexpr Entry kTable[] = {
      {kMicrosoft, "GroupNorm", microsoft_group_norm},
      {kMicrosoft, "SkipGroupNorm", skip_group_norm},
      {kMicrosoft, "BiasSplitGelu", bias_split_gelu},
      {kMicrosoft, "BiasAdd", bias_add},
      {kMicrosoft, "NhwcConv", nhwc_conv},
      {kMicrosoft, "RelativePositionBias", relative_position_bias},
      {kMicrosoft, "GatedRelativePositionBias", gated_position_bias},
  };
  return kTable;
}

}  // namespace ark::ops
