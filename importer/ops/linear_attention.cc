// Attention whose past is a matrix a head: the standard's LinearAttention (opset 27 on), com.microsoft's and its
// GatedDeltaNet, with what ONNX Runtime GenAI's builder puts around them.
#include <cmath>

#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

struct UpdateRule {
  bool decays, by_error;
};

UpdateRule update_rule(OpContext& c) {
  const std::string rule = c.attr_word("update_rule", {"gated_delta", "linear", "gated", "delta"});
  return {rule.starts_with("gated"), rule.ends_with("delta")};
}

// kLinearAttention of heads that are apart, without what the rule does not read.
std::vector<ValueId> emit_linear_attention(OpContext& c, std::vector<ValueId> in, const UpdateRule& rule) {
  if (rule.decays && in[4] == kNoValue) c.fail("its update rule needs a decay");
  if (rule.by_error && in[5] == kNoValue) c.fail("its update rule needs an update rate (beta)");
  if (!rule.decays) in[4] = kNoValue;
  if (!rule.by_error) in[5] = kNoValue;
  double scale = c.attr_float("scale", 0);
  if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(constant_dim(c, in[0], 3, "the head")));
  return c.emit_many(Op::kLinearAttention, std::move(in), {{key::kScale, scale}}, 2);
}

ValueId last_two_merged(OpContext& c, ValueId x) {
  const Shape shape = shape_of(c, x);
  return reshape(c, x, {shape[0], shape[1], shape[2] * shape[3]});
}

// (q [B, T, Hq * K], k [B, T, H or Hq * K], v [B, T, H * V], state [B, H, K, V]?, decay [B, T, H or H * K]?,
//  beta [B, T, H or 1]?)
void linear_attention(OpContext& c) {
  if (c.attr_int("state_window", 0) != 0)
    c.unsupported("a state_window; export without speculative decoding");
  const int64_t heads = c.attr_int("kv_num_heads", 0);
  const ValueId q = heads_apart(c, c.input(0), c.attr_int("q_num_heads", 0));
  // GenAI's builder gives keys as many heads as queries where values have more.
  const int64_t width = constant_dim(c, q, 3, "the head");
  const int64_t key_heads = width > 0 ? constant_dim(c, c.input(1), 2, "the keys") / width : 0;
  ValueId decay = optional_input(c, 4);
  if (decay != kNoValue) decay = heads_apart(c, decay, heads);
  const std::vector<ValueId> out =
      emit_linear_attention(c,
                            {q, heads_apart(c, c.input(1), key_heads), heads_apart(c, c.input(2), heads),
                             optional_input(c, 3), decay, optional_input(c, 5)},
                            update_rule(c));
  c.outputs[0] = last_two_merged(c, out[0]);
  c.outputs[1] = out[1];
}

// decay_scale * Softplus(a + dt_bias) in f32, as `to`.
ValueId log_decay(OpContext& c, ValueId a, ValueId bias, ValueId factor, DType to) {
  const ValueId sum = binary(c, Op::kAdd, cast(c, a, DType::kF32), cast(c, bias, DType::kF32));
  return cast(c, binary(c, Op::kMul, c.emit(Op::kSoftplus, {sum}), cast(c, factor, DType::kF32)), to);
}

ValueId sigmoid_in_f32(OpContext& c, ValueId x) {
  return cast(c, c.emit(Op::kSigmoid, {cast(c, x, DType::kF32)}), dtype_of(c, x));
}

// (a, dt_bias, decay_scale, b?) -> (decay, beta?)
void linear_attention_gate(OpContext& c) {
  c.outputs[0] = log_decay(c, c.input(0), c.input(1), c.input(2), dtype_of(c, c.input(0)));
  if (c.wants_output(1)) c.outputs[1] = sigmoid_in_f32(c, c.input(3));
}

ValueId with_unit_length(OpContext& c, ValueId heads) {
  const ValueId wide = cast(c, heads, DType::kF32);
  const ValueId squares = c.emit(Op::kReduceSum, {binary(c, Op::kMul, wide, wide)},
                                 {{key::kAxes, std::vector<int64_t>{-1}}, {key::kKeepdims, 1}});
  const ValueId length = c.emit(Op::kSqrt, {binary(c, Op::kAdd, squares, scalar(c, 1e-6, DType::kF32))});
  return cast(c, binary(c, Op::kDiv, wide, length), dtype_of(c, heads));
}

// (q [B, T, Hk, K], k [B, T, Hk, K], v [B, T, H, V], _, decay [B, T, H], beta [B, T, H], state [B, H, V, K], a_log?,
//  dt_bias?) -> (y [B, T, H, V], the last state): batches of equal lengths, not packed ones.
void gated_delta_net(OpContext& c) {
  if (c.has_input(3) || c.attr_int("state_update_capacity", 0) != 0 || !c.has_input(1) || c.rank(0) != 4)
    c.unsupported(
        "packed tokens, packed projections or captured updates; export for batches of equal lengths");
  const UpdateRule rule = update_rule(c);
  ValueId q = c.input(0), k = c.input(1);
  if (c.attr_int("qk_l2_norm", 0)) q = with_unit_length(c, q), k = with_unit_length(c, k);
  ValueId decay = optional_input(c, 4), rate = optional_input(c, 5), state = optional_input(c, 6);
  if (decay != kNoValue && c.attr_word("gate_activation", {"none", "qwen"}) == "qwen") {
    const ValueId factor = c.emit(Op::kNeg, {c.emit(Op::kExp, {cast(c, c.input(7), DType::kF32)})});
    decay = log_decay(c, decay, c.input(8), factor, DType::kF32);
  }
  if (decay != kNoValue && rank_of(c, decay) == 3) {
    Shape each = shape_of(c, decay);
    each.emplace_back(1);
    decay = reshape(c, decay, each);
  }
  if (rate != kNoValue && c.attr_word("beta_activation", {"none", "sigmoid"}) == "sigmoid")
    rate = sigmoid_in_f32(c, rate);
  if (state != kNoValue) state = transpose(c, state, {0, 1, 3, 2});
  const std::vector<ValueId> out = emit_linear_attention(c, {q, k, c.input(2), state, decay, rate}, rule);
  c.outputs[0] = out[0];
  if (c.wants_output(1)) c.outputs[1] = transpose(c, cast(c, out[1], DType::kF32), {0, 1, 3, 2});
}

// (x [..., H * C], scale [C], gate like x): a norm of each C elements, times the gate's activation, in f32.
void gated_rms_norm(OpContext& c) {
  const ValueId x = c.input(0);
  const Shape shape = shape_of(c, x);
  if (shape.empty()) c.fail("the input has no axis");
  const int64_t width = constant_dim(c, x, shape.size() - 1, "the last axis"),
                group = constant_dim(c, c.input(1), 0, "the scale");
  if (group <= 0 || width % group != 0)
    c.fail("a scale of " + std::to_string(group) + " does not divide a last axis of " +
           std::to_string(width));
  Shape apart = shape;
  apart.back() = width / group;
  apart.emplace_back(group);
  const ValueId norm = c.emit(
      Op::kRmsNorm, {reshape(c, cast(c, x, DType::kF32), apart), cast(c, c.input(1), DType::kF32)},
      {{key::kAxis, static_cast<int64_t>(shape.size())}, {key::kEpsilon, c.attr_float("epsilon", 1e-5f)}});
  const ValueId gate = cast(c, c.input(2), DType::kF32);
  ValueId factor = c.emit(Op::kSigmoid, {gate});
  if (c.attr_word("activation", {"silu", "swish", "sigmoid"}) != "sigmoid")
    factor = binary(c, Op::kMul, gate, factor);
  c.outputs[0] = cast(c, binary(c, Op::kMul, reshape(c, norm, shape), factor), dtype_of(c, x));
}

// x + y * gate, a gate for each row.
void gated_add(OpContext& c) {
  c.outputs[0] = binary(c, Op::kAdd, c.input(0), binary(c, Op::kMul, c.input(1), c.input(2)));
}

}  // namespace

std::span<const Entry> linear_attention_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "LinearAttention", linear_attention},
      {kMicrosoft, "LinearAttention", linear_attention},
      {kMicrosoft, "LinearAttentionGate", linear_attention_gate},
      {kMicrosoft, "GatedDeltaNet", gated_delta_net},
      {kMicrosoft, "GatedRMSNorm", gated_rms_norm},
      {kMicrosoft, "GatedAdd", gated_add},
  };
  return kTable;
}

}  // namespace ark::ops
