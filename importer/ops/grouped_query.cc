// com.microsoft GroupQueryAttention: packed or separate projections, norms of heads and rotary inside, lengths a row
// instead of a mask, sinks.
#include "base/ir/attention_operands.h"
#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

enum Input : std::size_t {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kLastIndex,
  kTotal,
  kCos,
  kSin,
  kPositions,
  kBias,
  kSink,
  kKeyScale,
  kValueScale,
  kQueryNorm,
  kKeyNorm
};

struct Heads {
  int64_t query, key;
};

// [B, S, H, D] each.
std::vector<ValueId> projections(OpContext& c, const Heads& heads) {
  std::vector<ValueId> flat{c.input(kQuery)};
  if (c.has_input(kKey)) {
    flat.push_back(c.input(kKey));
    flat.push_back(c.input(kValue));
  } else {
    const int64_t hidden = constant_dim(c, flat[0], 2, "the packed projection"),
                  all = heads.query + 2 * heads.key;
    if (hidden % all != 0)
      c.fail("a packed projection of " + std::to_string(hidden) + " does not divide into " +
             std::to_string(all) + " heads");
    const int64_t head = hidden / all;
    flat = c.emit_many(
        Op::kSplit, {flat[0]},
        {{key::kAxis, 2}, {key::kSizes, Shape{heads.query * head, heads.key * head, heads.key * head}}}, 3);
  }
  for (std::size_t i = 0; i < 3; ++i) flat[i] = heads_apart(c, flat[i], i == 0 ? heads.query : heads.key);
  return flat;
}

// Token i of row b stands at max(0, length - S) + i.
ValueId positions_of(OpContext& c, ValueId lengths, const Shape& query) {
  if (c.has_input(kPositions)) return cast(c, c.inputs[kPositions], DType::kI64);
  const ValueId wide = cast(c, lengths, DType::kI64), zero = scalar(c, 0, DType::kI64);
  const ValueId before = binary(c, Op::kMax, binary(c, Op::kSub, wide, dims(c, {query[1]})), zero);
  return binary(c, Op::kAdd, reshape(c, before, {query[0], Expr(1)}),
                reshape(c, range(c, 0, query[1]), {Expr(1), query[1]}));
}

void refuse_variants(OpContext& c) {
  if (c.wants_output(3)) c.unsupported("the scores as an output");
  const std::string quantized = c.attr_string("k_quant_type", "NONE") + c.attr_string("v_quant_type", "NONE");
  if (quantized != "NONENONE") c.unsupported("a quantized cache; export with a floating-point cache");
}

// The norm of each head of queries and keys, before they turn.
void normalize_heads(OpContext& c, std::vector<ValueId>& in) {
  if (c.has_input(kQueryNorm) != c.has_input(kKeyNorm))
    c.fail("q_norm_weight and k_norm_weight must be given together");
  if (!c.has_input(kQueryNorm)) return;
  for (const std::size_t i : {0, 1})
    in[i] = c.emit(Op::kRmsNorm, {in[i], c.inputs[kQueryNorm + i]},
                   {{key::kAxis, 3}, {key::kEpsilon, c.attr_float("qk_norm_epsilon", 1e-6)}});
}

// One score a head beside those of the keys: given, or 0 (a softmax with 1 added to its sum).
ValueId sinks(OpContext& c, int64_t heads) {
  if (c.has_input(kSink)) return c.inputs[kSink];
  if (c.attr_int("smooth_softmax", 0) <= 0) return kNoValue;
  return c.graph.add_constant(make_constant(Tensor::zeros(DType::kF32, {heads}), "smooth_softmax"));
}

void grouped_query_attention(OpContext& c) {
  refuse_variants(c);
  const Heads heads{c.attr_int("num_heads", 0), c.attr_int("kv_num_heads", 0)};
  constexpr int64_t kMost = 1 << 20;
  if (heads.query <= 0 || heads.query > kMost || heads.key <= 0 || heads.query % heads.key != 0)
    c.fail("num_heads must be a positive multiple of kv_num_heads");
  std::vector<ValueId> in = projections(c, heads);
  const Shape query = shape_of(c, in[0]);
  normalize_heads(c, in);
  const ValueId last = reshape(c, c.input(kLastIndex), {query[0]});
  const ValueId lengths = binary(c, Op::kAdd, last, scalar(c, 1, dtype_of(c, last)));
  if (c.attr_int("do_rotary", 0)) {
    const ValueId positions = positions_of(c, lengths, query);
    const int64_t rotary = 2 * constant_dim(c, c.input(kCos), 1, "the rotary table");
    for (std::size_t i = 0; i < 2; ++i)
      in[i] = c.emit(Op::kRotary, {in[i], c.input(kCos), c.input(kSin), positions},
                     {{key::kInterleaved, c.attr_int("rotary_interleaved", 0)},
                      {key::kRotaryDim, rotary},
                      {key::kHeadAxis, 2}});
  }
  for (ValueId& x : in) x = transpose(c, x, {0, 2, 1, 3});
  in.push_back(optional_input(c, kBias));
  // Without a past, causality alone hides the padding on the right.
  if (c.has_input(kPastKey))
    in.insert(in.end(), {c.inputs[kPastKey], c.input(kPastValue), lengths, c.input(kTotal)});
  if (const ValueId added = sinks(c, heads.query); added != kNoValue) {
    in.resize(attention::kSinks, kNoValue);
    in.push_back(added);
  }
  const int64_t window = std::max<int64_t>(0, c.attr_int("local_window_size", -1));
  const bool causal = c.attr_int("causal", 1) != 0, evicts = c.attr_int("sliding_window_cache", 0) != 0;
  if (!causal && window) c.fail("local_window_size needs causal 1");
  if (evicts && (!window || !c.has_input(kPastKey)))
    c.fail("sliding_window_cache needs local_window_size and a past");
  attend(c, in, causal, window, c.attr_float("softcap", 0), evicts);
}

}  // namespace

std::span<const Entry> grouped_query_table() {
  static constexpr Entry kTable[] = {{kMicrosoft, "GroupQueryAttention", grouped_query_attention}};
  return kTable;
}

}  // namespace ark::ops
