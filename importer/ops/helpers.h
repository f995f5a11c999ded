// Small steps that many operator importers share. All emit into the context's graph.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "importer/op_importer.h"

namespace ark::ops {

// -- what is known of values
const Value& value_of(const OpContext& c, ValueId id);
DType dtype_of(const OpContext& c, ValueId id);
const Shape& shape_of(const OpContext& c, ValueId id);  // throws Error(kUnsupported) if the rank is unknown
int64_t rank_of(const OpContext& c, ValueId id);
ValueId optional_input(const OpContext& c, std::size_t i);  // kNoValue if absent
// Elements of an optional input: nullopt if absent or not known.
std::optional<std::vector<Expr>> known(const OpContext& c, std::size_t i);
// The same as numbers.
std::optional<std::vector<int64_t>> known_ints(const OpContext& c, std::size_t i);
// A list that older opsets give as attribute `name` and newer ones as input `i`; nullopt if it is data.
// `present` tells whether it is given at all.
std::optional<std::vector<int64_t>> ints_of(const OpContext& c, std::string_view name, std::size_t i,
                                            bool* present = nullptr);
int64_t constant_dim(const OpContext& c, ValueId id, std::size_t axis,
                     const char* what);  // refuses symbolic sizes

// -- nodes
ValueId reshape(OpContext& c, ValueId x, const Shape& shape);  // x itself if it has that shape
ValueId transpose(OpContext& c, ValueId x, std::vector<int64_t> perm);
// An image's channels to its last axis, or from there to axis 1.
ValueId turn_channels(OpContext& c, ValueId x, bool last);
ValueId cast(OpContext& c, ValueId x, DType to);  // x itself if it has that type
ValueId bit_cast(OpContext& c, ValueId x, DType to);
ValueId bits_of_texts(OpContext& c, ValueId x);           // texts' numbers, i64; of another type x itself
ValueId dims(OpContext& c, const Shape& values);          // i64 [n]
ValueId scalar(OpContext& c, double value, DType dtype);  // constant of rank 0, any numeric type
ValueId binary(OpContext& c, Op op, ValueId a, ValueId b);
ValueId slice_axis(OpContext& c, ValueId x, int64_t axis, const Expr& begin,
                   const Expr& end);                                // 0 <= begin <= end <= size
ValueId range(OpContext& c, const Expr& start, const Expr& limit);  // i64
// What the standard's operator of this name and opset makes of these operands, with the node's attributes.
std::vector<ValueId> standard_results(OpContext& c, std::string op_type, std::vector<ValueId> inputs,
                                      int64_t opset = 18);
// Heads apart: [B, S, H*D] -> [B, S, H, D]; the same turned, [B, H, S, D], and back.
ValueId heads_apart(OpContext& c, ValueId x, int64_t heads);
ValueId split_heads(OpContext& c, ValueId x, int64_t heads);
ValueId merge_heads(OpContext& c, ValueId x);
// kAttention of these operands with the node's `scale`. Its results become the node's first outputs: y with heads
// merged unless the node's queries come apart, then the present keys and values where they are wanted.
std::vector<ValueId> attend(OpContext& c, const std::vector<ValueId>& in, bool causal, int64_t window,
                            double softcap, bool evicts = false);
// The activation behind a fused product, by its ONNX name. `given(name, i)`: its i-th parameter, if given.
using GivenParameter = std::function<std::optional<double>(const std::string& name, std::size_t i)>;
ValueId activated(OpContext& c, ValueId x, const std::string& activation, const GivenParameter& given);
// Adds `bias` if input i is there.
ValueId add_input(OpContext& c, ValueId x, std::size_t i);

// Input x with its scale and zero point (absent: 0) as f32, and f32 quantized by the scale and zero point (absent: 0
// of `type`) of inputs.
ValueId dequantized(OpContext& c, std::size_t x, std::size_t scale, std::size_t zero, int64_t axis);
ValueId quantized(OpContext& c, ValueId x, std::size_t scale, std::size_t zero, DType type = DType::kU8);
// Bytes `a` times input b, in f32 with the scales of both.
ValueId scaled_product(OpContext& c, ValueId a, ValueId a_zero, ValueId a_scale, std::size_t b,
                       std::size_t b_scale, std::size_t b_zero);

}  // namespace ark::ops
