// The standard's Attention (opset 23 on) and RotaryEmbedding, and com.microsoft's RotaryEmbedding and MRotaryEmbedding.
#include <algorithm>
#include <cmath>

#include "base/ir/attention_operands.h"
#include "base/ir/keys.h"
#include "base/ir/slice_bounds.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

// -- rotary

// [B, S, H*D] or [B, H, S, D] -> [B, S, H, D].
ValueId tokens_first(OpContext& c, ValueId x, int64_t heads) {
  const Shape shape = shape_of(c, x);
  if (shape.size() == 4) return transpose(c, x, {0, 2, 1, 3});
  if (shape.size() != 3) c.fail("the input must have rank 3 or 4");
  if (heads <= 0) c.fail("num_heads is needed for an input of rank 3");
  return heads_apart(c, x, heads);
}

ValueId tokens_back(OpContext& c, ValueId y, const Shape& shape) {
  return shape.size() == 4 ? transpose(c, y, {0, 2, 1, 3}) : reshape(c, y, shape);
}

struct Pair {
  ValueId first, second;
};

Pair halves(OpContext& c, ValueId x, int64_t size, bool interleaved) {
  const auto part = [&](int64_t begin, int64_t end, int64_t step) {
    return c.emit(Op::kSlice, {x}, slice_of(3, begin, end, step));
  };
  if (interleaved) return {part(0, size, 2), part(1, size, 2)};
  return {part(0, size / 2, 1), part(size / 2, size, 1)};
}

// cos and sin are given for each token ([B, S, R/2]): plain arithmetic on x [B, S, H, D].
ValueId rotate_by_rows(OpContext& c, ValueId x, ValueId cos, ValueId sin, int64_t rotary, bool interleaved) {
  const Shape shape = shape_of(c, x), angles = shape_of(c, cos);
  const int64_t head = constant_dim(c, x, 3, "the head");
  const Shape row{angles[0], angles[1], 1, angles[2]};
  cos = reshape(c, cos, row);
  sin = reshape(c, sin, row);
  const ValueId rotated = rotary == head ? x : slice_axis(c, x, 3, 0, rotary);
  const auto [a, b] = halves(c, rotated, rotary, interleaved);
  ValueId real = binary(c, Op::kSub, binary(c, Op::kMul, cos, a), binary(c, Op::kMul, sin, b));
  ValueId imaginary = binary(c, Op::kAdd, binary(c, Op::kMul, sin, a), binary(c, Op::kMul, cos, b));
  ValueId y;
  if (interleaved) {
    const Shape pairs{shape[0], shape[1], shape[2], rotary / 2, 1};
    y = c.emit(Op::kConcat, {reshape(c, real, pairs), reshape(c, imaginary, pairs)}, {{key::kAxis, 4}});
    y = reshape(c, y, {shape[0], shape[1], shape[2], rotary});
  } else {
    y = c.emit(Op::kConcat, {real, imaginary}, {{key::kAxis, 3}});
  }
  return rotary == head ? y : c.emit(Op::kConcat, {y, slice_axis(c, x, 3, rotary, head)}, {{key::kAxis, 3}});
}

void rotary(OpContext& c, ValueId cos, ValueId sin, ValueId positions, int64_t heads) {
  const ValueId input = c.input(0);
  const Shape shape = shape_of(c, input);
  const ValueId x = tokens_first(c, input, heads);
  const int64_t head = constant_dim(c, x, 3, "the head");
  int64_t size = c.attr_int("rotary_embedding_dim", 0);
  if (size == 0) size = head;
  if (size < 0 || size > head || size % 2)
    c.fail("rotary_embedding_dim must be even and at most the head size " + std::to_string(head));
  const bool interleaved = c.attr_int("interleaved", 0) != 0;
  if (rank_of(c, cos) != (positions == kNoValue ? 3 : 2))
    c.fail("cos and sin must be [L, R/2] with position ids, [B, S, R/2] without");
  const ValueId y =
      positions == kNoValue
          ? rotate_by_rows(c, x, cos, sin, size, interleaved)
          : c.emit(Op::kRotary, {x, cos, sin, positions},
                   {{key::kInterleaved, int64_t{interleaved}}, {key::kRotaryDim, size}, {key::kHeadAxis, 2}});
  c.outputs[0] = tokens_back(c, y, shape);
}

void rotary_standard(OpContext& c) {
  rotary(c, c.input(1), c.input(2), c.has_input(3) ? cast(c, c.inputs[3], DType::kI64) : kNoValue,
         c.attr_int("num_heads", 0));
}

// com.microsoft: an input of rank 3 may leave the heads out if all of each head turns; the tables, half a
// head wide, then tell them.
int64_t heads_by_table(OpContext& c, ValueId cos) {
  const int64_t given = c.attr_int("num_heads", 0);
  if (given != 0 || c.attr_int("rotary_embedding_dim", 0) != 0 || rank_of(c, c.input(0)) != 3) return given;
  const int64_t head = 2 * constant_dim(c, cos, 1, "the rotary table"),
                hidden = constant_dim(c, c.input(0), 2, "the hidden axis");
  if (head <= 0 || hidden % head != 0)
    c.fail("num_heads is absent, and heads of " + std::to_string(head) +
           ", as wide as the rotary table says, do not divide a last axis of " + std::to_string(hidden));
  return hidden / head;
}

// com.microsoft: (x, position ids [B, S] or [1] = where the sequence begins, cos, sin)
void rotary_microsoft(OpContext& c) {
  if (c.attr_int("is_packed_batching", 0)) c.unsupported("packed batches");
  if (c.attr_float("scale", 1) != 1) c.unsupported("a scale other than 1");
  ValueId positions = cast(c, c.input(1), DType::kI64);
  if (rank_of(c, positions) <= 1) {
    const Shape& x = shape_of(c, c.input(0));
    const Expr length = x[x.size() == 4 ? 2 : 1];
    positions = binary(c, Op::kAdd, reshape(c, positions, {Expr(1), Expr(1)}),
                       reshape(c, range(c, 0, length), {Expr(1), length}));
  }
  rotary(c, c.input(2), c.input(3), positions, heads_by_table(c, c.input(2)));
}

// com.microsoft's of Qwen's vision-language models: (x, position ids [3, B, S]: time, height and width, cos, sin). Each
// pair of elements turns by one of the three, as `mrope_section` deals them out.
void rotary_of_three(OpContext& c) {
  if (c.attr_int("is_packed_batching", 0)) c.unsupported("packed batches");
  if (c.attr_float("scale", 1) != 1) c.unsupported("a scale other than 1");
  const int64_t pairs = constant_dim(c, c.input(2), 1, "the rotary table");
  const std::vector<int64_t> sections = c.attr_ints("mrope_section");
  if (sections.size() != 3 ||
      std::any_of(sections.begin(), sections.end(), [&](int64_t s) { return s < 0 || s > pairs; }) ||
      sections[0] + sections[1] + sections[2] != pairs)
    c.fail("mrope_section must be three numbers whose sum is the rotary table's width, " +
           std::to_string(pairs));
  if (rank_of(c, c.input(1)) != 3) c.fail("position ids must have rank 3");
  c.require_equal(shape_of(c, c.input(1))[0], 3, "the first axis of the position ids");
  const bool interleaved = c.attr_int("mrope_layout", 0) != 0;
  const auto turns_pair = [&](int64_t which, int64_t i) {
    if (interleaved) return i % 3 == which && i < 3 * sections[static_cast<std::size_t>(which)];
    return i >= sections[0] + (which == 2 ? sections[1] : 0) && i < pairs - (which == 1 ? sections[2] : 0);
  };
  const auto dealt = [&](ValueId table) {
    const ValueId rows = c.emit(Op::kGather, {table, cast(c, c.input(1), DType::kI64)}, {{key::kAxis, 0}});
    const Shape all = shape_of(c, rows);
    const auto of = [&](int64_t which) {
      return reshape(c, slice_axis(c, rows, 0, which, which + 1), {all[1], all[2], all[3]});
    };
    ValueId chosen = of(0);
    for (const int64_t which : {1, 2}) {
      Tensor turned = Tensor::zeros(DType::kBool, {pairs});
      for (int64_t i = 0; i < pairs; ++i) turned.as<uint8_t>()[i] = turns_pair(which, i);
      const ValueId by_pair = c.graph.add_constant(make_constant(std::move(turned)));
      chosen = c.emit(Op::kWhere, {by_pair, of(which), chosen});
    }
    return chosen;
  };
  rotary(c, dealt(c.input(2)), dealt(c.input(3)), kNoValue, heads_by_table(c, c.input(2)));
}

// -- attention

// Masks may be shorter than the keys: what is missing is masked.
ValueId padded_mask(OpContext& c, ValueId mask, const Expr& total) {
  const Shape shape = shape_of(c, mask);
  if (shape.empty()) c.fail("the mask must have an axis of keys");
  const auto have = shape.back().constant(), want = total.constant();
  if (!have || !want || *have >= *want || *have == 1) return mask;
  Shape pads(2 * shape.size(), Expr(0));
  pads.back() = *want - *have;
  const DType type = dtype_of(c, mask);
  const ValueId fill = type == DType::kBool ? scalar(c, 0, type) : scalar(c, -INFINITY, type);
  return c.emit(Op::kPad, {mask, kNoValue, fill}, {{key::kPadding, pads}, {key::kMode, "constant"}});
}

ValueId heads_of(OpContext& c, std::size_t i, const char* attribute) {
  const ValueId x = c.input(i);
  return rank_of(c, x) == 4 ? x : split_heads(c, x, c.attr_int(attribute, 0));
}

// How many keys a window reaches; -1: all. Further than any sequence is cut, so that sums stay numbers.
int64_t window_size(OpContext& c, const char* name) {
  return std::min(c.attr_int(name, -1), int64_t{1} << 40);
}

// The mask, if there is one, with the keys hidden that lie further behind a query than the window to the right reaches.
// Query i sits at `past` + i.
ValueId mask_of_window(OpContext& c, ValueId mask, const Expr& past, const Expr& queries, const Expr& keys) {
  const int64_t right = window_size(c, "right_window_size");
  if (right < 0 || c.attr_int("is_causal", 0) != 0) return mask;
  if (c.has_input(6))
    c.unsupported("a window to the right beside lengths of keys; export the window as a mask");
  const ValueId last = reshape(c, range(c, past + Expr(right), past + Expr(right) + queries), {queries, 1});
  const ValueId seen = c.emit(Op::kLessOrEqual, {range(c, 0, keys), last});
  if (mask == kNoValue) return seen;
  const DType type = dtype_of(c, mask);
  return type == DType::kBool ? binary(c, Op::kAnd, mask, seen)
                              : c.emit(Op::kWhere, {seen, mask, scalar(c, -INFINITY, type)});
}

// (q, k, v, mask?, past_k?, past_v?, valid key lengths [B]?) -> (y, present_k?, present_v?, scores?)
void attention(OpContext& c) {
  if (c.wants_output(3))
    c.unsupported("the scores as an output (qk_matmul_output); export without output_attentions");
  const ValueId q = heads_of(c, 0, "q_num_heads"), k = heads_of(c, 1, "kv_num_heads"),
                v = heads_of(c, 2, "kv_num_heads");
  const bool past = c.has_input(4), causal = c.attr_int("is_causal", 0) != 0;
  if (past != c.has_input(5)) c.fail("past keys and past values must be given together");
  std::vector<ValueId> in{q, k, v};
  in.resize(attention::kTotal, kNoValue);
  Expr total = shape_of(c, k)[2];
  if (past) {
    in[attention::kPastK] = c.inputs[4], in[attention::kPastV] = c.inputs[5];
    if (rank_of(c, c.inputs[4]) != 4) c.fail("the past must have rank 4");
    total = shape_of(c, c.inputs[4])[2] + total;
  }
  if (c.has_input(3)) in[attention::kBias] = padded_mask(c, c.inputs[3], total);
  in[attention::kLengths] = optional_input(c, 6);
  const Expr keys = shape_of(c, k)[2];
  in[attention::kBias] = mask_of_window(c, in[attention::kBias], total - keys, shape_of(c, q)[2], total);
  const int64_t left = window_size(c, "left_window_size");
  attend(c, in, causal, left < 0 ? 0 : left + 1, c.attr_float("softcap", 0));
}

}  // namespace

std::span<const Entry> attention_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "Attention", attention},
      {kOnnx, "RotaryEmbedding", rotary_standard},
      {kMicrosoft, "RotaryEmbedding", rotary_microsoft},
      {kMicrosoft, "MRotaryEmbedding", rotary_of_three},
  };
  return kTable;
}

}  // namespace ark::ops
