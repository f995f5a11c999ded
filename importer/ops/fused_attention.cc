// com.microsoft Attention and MultiHeadAttention: projections and masks spelled out around kAttention.
#include "base/ir/attention_operands.h"
#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

// The padding masks of com.microsoft -> bool, broadcastable to [B, H, S, total]; true = visible:
// [B] ends, [2B] ends and begins, [3B+2] ends and more, [B, total], [B, S, total] and [B, 1, S, total].
ValueId visible_keys(OpContext& c, ValueId mask, const Expr& batch, const Expr& total) {
  const Shape shape = shape_of(c, mask);
  if (shape.size() == 1) {
    const bool starts = shape[0] == batch * 2;
    if (!starts && !(shape[0] == batch) && !(shape[0] == batch * 3 + 2))
      c.unsupported("a mask index of shape " + str(shape) + "; export with a two-dimensional attention mask");
    const ValueId keys = reshape(c, range(c, 0, total), {Expr(1), Expr(1), Expr(1), total});
    mask = cast(c, mask, DType::kI64);
    const auto row = [&](const Expr& begin) {
      const ValueId part = shape[0] == batch ? mask : slice_axis(c, mask, 0, begin, begin + batch);
      return reshape(c, part, {batch, Expr(1), Expr(1), Expr(1)});
    };
    const ValueId before = binary(c, Op::kLess, keys, row(0));
    return starts ? binary(c, Op::kAnd, before, binary(c, Op::kGreaterOrEqual, keys, row(batch))) : before;
  }
  if (shape.size() < 2 || shape.size() > 4) c.fail("a mask of rank " + std::to_string(shape.size()));
  if (!(shape.back() == total)) {
    if (shape.back().constant() && total.constant())
      c.unsupported("a mask wider than the keys (" + shape.back().str() + " against " + total.str() + ")");
    c.graph.assumptions.emplace_back(shape.back(), total);
  }
  const ValueId visible = cast(c, mask, DType::kBool);
  if (shape.size() == 2) return reshape(c, visible, {shape[0], Expr(1), Expr(1), shape[1]});
  if (shape.size() == 3) return reshape(c, visible, {shape[0], Expr(1), shape[1], shape[2]});
  return visible;
}

// A mask and an additive bias in one operand. What is masked gets the filter value, not minus infinity: a row with
// nothing visible is the mean of all values, weighted by their scores.
ValueId combined_bias(OpContext& c, DType type, ValueId visible, ValueId bias) {
  if (visible == kNoValue) return bias;
  const ValueId filter = scalar(c, c.attr_float("mask_filter_value", -10000), type);
  const ValueId mask = c.emit(Op::kWhere, {visible, scalar(c, 0, type), filter});
  return bias == kNoValue ? mask : binary(c, Op::kAdd, mask, bias);
}

// Head counts per projection: q, k, v of hidden sizes that may differ.
std::vector<int64_t> hidden_sizes(OpContext& c, ValueId weights, int64_t heads) {
  std::vector<int64_t> sizes = c.attr_ints("qkv_hidden_sizes");
  const int64_t columns = constant_dim(c, weights, 1, "the projection");
  if (sizes.empty()) sizes.assign(3, columns / 3);
  if (sizes.size() != 3 || sizes[0] + sizes[1] + sizes[2] != columns || heads <= 0)
    c.fail("num_heads and qkv_hidden_sizes do not fit the projection");
  return sizes;
}

// qkv [B, S, q+k+v] -> (y, present?). Inputs of the node: `mask` and `past` [2, B, H, P, D], if they are there.
void attend_packed(OpContext& c, ValueId qkv, std::size_t mask, std::size_t before, ValueId added_bias) {
  if (c.attr_int("do_rotary", 0)) c.unsupported("do_rotary; export with RotaryEmbedding");
  if (c.attr_int("past_present_share_buffer", 0))
    c.unsupported("a past that shares its buffer with the present; export without it");
  const int64_t heads = c.attr_int("num_heads", 0);
  const auto sizes = hidden_sizes(c, c.input(1), heads);
  const auto parts =
      c.emit_many(Op::kSplit, {qkv}, {{key::kAxis, 2}, {key::kSizes, Shape(sizes.begin(), sizes.end())}}, 3);
  std::vector<ValueId> in;
  for (const ValueId part : parts) in.push_back(split_heads(c, part, heads));
  in.resize(attention::kLengths, kNoValue);
  const Shape keys = shape_of(c, in[attention::kK]);
  Expr total = keys[2];
  if (c.has_input(before)) {
    const Shape past = shape_of(c, c.inputs[before]);
    if (past.size() != 5) c.fail("the past must be [2, batch, heads, past, head]");
    const auto halves = c.emit_many(Op::kSplit, {c.inputs[before]},
                                    {{key::kAxis, 0}, {key::kSizes, Shape{Expr(1), Expr(1)}}}, 2);
    for (std::size_t i = 0; i < 2; ++i)
      in[attention::kPastK + i] = reshape(c, halves[i], Shape(past.begin() + 1, past.end()));
    total = past[3] + total;
  }
  const ValueId visible = c.has_input(mask) ? visible_keys(c, c.inputs[mask], keys[0], total) : kNoValue;
  in[attention::kBias] = combined_bias(c, dtype_of(c, qkv), visible, added_bias);
  const auto results = attend(c, in, c.attr_int("unidirectional", 0) != 0, 0, 0);
  if (!c.wants_output(1)) return;
  std::vector<ValueId> present;
  for (const std::size_t i : {attention::kPresentK, attention::kPresentV}) {
    Shape shape = shape_of(c, results[i]);
    shape.insert(shape.begin(), Expr(1));
    present.push_back(reshape(c, results[i], shape));
  }
  c.outputs[1] = c.emit(Op::kConcat, present, {{key::kAxis, 0}});
}

// (x, weights [hidden, q+k+v], bias?, mask?, past?, added bias?) -> (y, present?)
void packed_attention(OpContext& c) {
  const ValueId qkv = add_input(c, c.emit(Op::kMatMul, {c.input(0), c.input(1)}), 2);
  attend_packed(c, qkv, 3, 4, optional_input(c, 5));
}

// The same of bytes: (x, weights, bias, x scale, weights' scale, mask?, x zero?, weights' zero?, past?)
void quantized_attention(OpContext& c) {
  const ValueId zero = c.has_input(6) ? c.inputs[6] : kNoValue;
  attend_packed(c, add_input(c, scaled_product(c, c.input(0), zero, c.input(3), 1, 4, 7), 2), 5, 8, kNoValue);
}

// q, k, v of MultiHeadAttention as [B, H, S, D], biases added. Forms: three of rank 3; keys and values
// already split in heads (rank 4); keys and values packed [B, L, H, 2, D]; all packed [B, S, H, 3, D].
std::vector<ValueId> multi_head_inputs(OpContext& c, int64_t heads) {
  const auto unpack = [&](ValueId packed, int64_t count) {
    const Shape shape = shape_of(c, packed);
    if (shape.size() != 5 || !shape[3].is_constant(count))
      c.fail("packed inputs must be [batch, length, heads, " + std::to_string(count) + ", head]");
    const auto parts =
        c.emit_many(Op::kSplit, {packed},
                    {{key::kAxis, 3}, {key::kSizes, Shape(static_cast<std::size_t>(count), Expr(1))}},
                    static_cast<int>(count));
    std::vector<ValueId> result;
    for (const ValueId part : parts)
      result.push_back(
          transpose(c, reshape(c, part, {shape[0], shape[1], shape[2], shape[4]}), {0, 2, 1, 3}));
    return result;
  };
  if (c.has_input(3) && (rank_of(c, c.input(0)) == 5 || !c.has_input(2)))
    c.unsupported("a bias with packed inputs");
  if (rank_of(c, c.input(0)) == 5) return unpack(c.input(0), 3);
  std::vector<ValueId> flat{c.input(0), c.input(1)};
  if (c.has_input(2)) flat.push_back(c.inputs[2]);
  if (c.has_input(3)) {
    Shape sizes;
    for (const ValueId x : flat)
      sizes.emplace_back(rank_of(c, x) == 4 ? heads * constant_dim(c, x, 3, "the head")
                                            : constant_dim(c, x, 2, "the hidden axis"));
    const auto biases = c.emit_many(Op::kSplit, {c.inputs[3]}, {{key::kAxis, 0}, {key::kSizes, sizes}}, 3);
    for (std::size_t i = 0; i < flat.size(); ++i)
      if (rank_of(c, flat[i]) == 3) flat[i] = binary(c, Op::kAdd, flat[i], biases[i]);
  }
  std::vector<ValueId> result{split_heads(c, flat[0], heads)};
  if (flat.size() == 2) {
    for (const ValueId part : unpack(flat[1], 2)) result.push_back(part);
  } else {
    for (std::size_t i = 1; i < 3; ++i)
      result.push_back(rank_of(c, flat[i]) == 4 ? flat[i] : split_heads(c, flat[i], heads));
  }
  return result;
}

// (q, k?, v?, bias?, key mask?, added bias?, past_k?, past_v?) -> (y, present_k?, present_v?)
void multi_head_attention(OpContext& c) {
  const int64_t heads = c.attr_int("num_heads", 0);
  if (c.wants_output(3)) c.unsupported("the scores as an output");
  std::vector<ValueId> in = multi_head_inputs(c, heads);
  in.resize(attention::kLengths, kNoValue);
  const Shape keys = shape_of(c, in[attention::kK]);
  Expr total = keys[2];
  if (c.has_input(6)) {
    in[attention::kPastK] = c.inputs[6], in[attention::kPastV] = c.input(7);
    total = shape_of(c, c.inputs[6]).at(2) + total;
  }
  const ValueId visible = c.has_input(4) ? visible_keys(c, c.inputs[4], keys[0], total) : kNoValue;
  in[attention::kBias] = combined_bias(c, dtype_of(c, c.input(0)), visible, optional_input(c, 5));
  attend(c, in, c.attr_int("unidirectional", 0) != 0, 0, 0);
}

}  // namespace

std::span<const Entry> fused_attention_table() {
  static constexpr Entry kTable[] = {
      {kMicrosoft, "Attention", packed_attention},
      {kMicrosoft, "QAttention", quantized_attention},
      {kMicrosoft, "MultiHeadAttention", multi_head_attention},
  };
  return kTable;
}

}  // namespace ark::ops
