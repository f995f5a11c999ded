#include "importer/ops/helpers.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"
#include "base/ir/shape_rules/rules.h"
#include "base/ir/slice_bounds.h"

namespace ark::ops {

const Value& value_of(const OpContext& c, ValueId id) { return c.graph.value(id); }
DType dtype_of(const OpContext& c, ValueId id) { return c.graph.value(id).dtype; }

const Shape& shape_of(const OpContext& c, ValueId id) {
  const Value& v = c.graph.value(id);
  if (!v.shape) c.unsupported("the rank of '" + escaped(v.name) + "' is not known");
  return *v.shape;
}

int64_t rank_of(const OpContext& c, ValueId id) { return static_cast<int64_t>(shape_of(c, id).size()); }

ValueId optional_input(const OpContext& c, std::size_t i) { return c.has_input(i) ? c.inputs[i] : kNoValue; }

std::optional<std::vector<Expr>> known(const OpContext& c, std::size_t i) {
  return c.has_input(i) ? shape_rules::elements_of(c.graph, c.inputs[i]) : std::nullopt;
}

std::optional<std::vector<int64_t>> known_ints(const OpContext& c, std::size_t i) {
  const auto elements = known(c, i);
  return elements ? constants_of(*elements) : std::nullopt;
}

std::optional<std::vector<int64_t>> ints_of(const OpContext& c, std::string_view name, std::size_t i,
                                            bool* present) {
  const bool attribute = c.has_attr(name), input = c.has_input(i);
  if (present) *present = attribute || input;
  if (attribute) return c.attr_ints(name);
  return input ? known_ints(c, i) : std::vector<int64_t>{};
}

int64_t constant_dim(const OpContext& c, ValueId id, std::size_t axis, const char* what) {
  const Shape& shape = shape_of(c, id);
  if (axis >= shape.size()) c.fail(std::string(what) + " has rank " + std::to_string(shape.size()));
  const auto size = shape[axis].constant();
  if (!size)
    c.unsupported("the size of " + std::string(what) + " is " + shape[axis].str() + ", not a number");
  return *size;
}

ValueId reshape(OpContext& c, ValueId x, const Shape& shape) {
  const auto& have = value_of(c, x).shape;
  return have && *have == shape ? x : c.emit(Op::kReshape, {x}, {{key::kShape, shape}});
}

ValueId transpose(OpContext& c, ValueId x, std::vector<int64_t> perm) {
  return c.emit(Op::kTranspose, {x}, {{key::kPerm, std::move(perm)}});
}

ValueId cast(OpContext& c, ValueId x, DType to) {
  return dtype_of(c, x) == to ? x : c.emit(Op::kCast, {x}, {{key::kTo, static_cast<int64_t>(to)}});
}

ValueId bit_cast(OpContext& c, ValueId x, DType to) {
  return c.emit(Op::kBitCast, {x}, {{key::kTo, static_cast<int64_t>(to)}});
}
ValueId bits_of_texts(OpContext& c, ValueId x) {
  return dtype_of(c, x) == DType::kString ? bit_cast(c, x, DType::kI64) : x;
}

ValueId dims(OpContext& c, const Shape& values) { return c.emit(Op::kDims, {}, {{key::kValues, values}}); }

ValueId scalar(OpContext& c, double value, DType dtype) {
  if (is_floating(dtype)) return c.constant_float(static_cast<float>(value), dtype);
  if (!is_integer(dtype) && dtype != DType::kBool)
    c.unsupported("a constant of type " + std::string(name_of(dtype)));
  if (!(std::abs(value) < 0x1p63)) c.fail("no integer is " + std::to_string(value));
  const ValueId wide = c.graph.add_constant(
      make_constant(Tensor::of<int64_t>(DType::kI64, {}, std::vector<int64_t>{static_cast<int64_t>(value)})));
  return cast(c, wide, dtype);
}

ValueId binary(OpContext& c, Op op, ValueId a, ValueId b) { return c.emit(op, {a, b}); }

ValueId slice_axis(OpContext& c, ValueId x, int64_t axis, const Expr& begin, const Expr& end) {
  return c.emit(Op::kSlice, {x}, slice_of(axis, begin, end));
}

ValueId range(OpContext& c, const Expr& start, const Expr& limit) {
  return c.emit(Op::kRange, {},
                {{key::kStart, Shape{start}},
                 {key::kLimit, Shape{limit}},
                 {key::kDelta, Shape{Expr(1)}},
                 {key::kTo, static_cast<int64_t>(DType::kI64)}});
}

std::vector<ValueId> standard_results(OpContext& c, std::string op_type, std::vector<ValueId> inputs,
                                      int64_t opset) {
  onnx::Node node = c.node;
  node.domain.clear();
  node.op_type = std::move(op_type);
  OpContext inner(c.graph, node, opset, c.label, std::move(inputs));
  find_op_importer(node.domain, node.op_type)(inner);
  return inner.outputs;
}

ValueId turn_channels(OpContext& c, ValueId x, bool last) {
  std::vector<int64_t> perm(static_cast<std::size_t>(rank_of(c, x)));
  if (perm.size() < 3) c.fail("an image needs a batch, channels and at least one axis more");
  std::iota(perm.begin(), perm.end(), 0);
  std::rotate(perm.begin() + 1, last ? perm.begin() + 2 : perm.end() - 1, perm.end());
  return transpose(c, x, perm);
}

ValueId heads_apart(OpContext& c, ValueId x, int64_t heads) {
  const Shape shape = shape_of(c, x);
  if (shape.size() != 3) c.fail("queries, keys and values must have rank 3 here");
  const int64_t hidden = constant_dim(c, x, 2, "the hidden axis");
  if (heads <= 0 || hidden % heads != 0)
    c.fail("a hidden size of " + std::to_string(hidden) + " does not divide into " + std::to_string(heads) +
           " heads");
  return reshape(c, x, {shape[0], shape[1], heads, hidden / heads});
}

ValueId split_heads(OpContext& c, ValueId x, int64_t heads) {
  return transpose(c, heads_apart(c, x, heads), {0, 2, 1, 3});
}

ValueId merge_heads(OpContext& c, ValueId x) {
  const Shape shape = shape_of(c, x);
  return reshape(c, transpose(c, x, {0, 2, 1, 3}), {shape[0], shape[2], shape[1] * shape[3]});
}

std::vector<ValueId> attend(OpContext& c, const std::vector<ValueId>& in, bool causal, int64_t window,
                            double softcap, bool evicts) {
  double scale = c.attr_float("scale", 0);
  // 0 is how com.microsoft's operators say nothing.
  if (!c.has_attr("scale") || (scale == 0 && !c.node.domain.empty()))
    scale = 1 / std::sqrt(static_cast<double>(constant_dim(c, in[0], 3, "the head")));
  Attributes attributes{{key::kScale, scale},
                        {key::kCausal, int64_t{causal}},
                        {key::kWindow, window},
                        {key::kSoftcap, softcap},
                        {key::kCleanNan, 1}};
  if (evicts) attributes.set(key::kEvicts, 1);
  std::vector<ValueId> results =
      c.emit_many(Op::kAttention, in, attributes, c.wants_output(1) || c.wants_output(2) ? 3 : 1);
  std::copy(results.begin(), results.end(), c.outputs.begin());
  if (rank_of(c, c.input(0)) != 4) c.outputs[0] = merge_heads(c, results[0]);
  return results;
}

ValueId activated(OpContext& c, ValueId x, const std::string& activation, const GivenParameter& given) {
  const pointwise::Row* row = pointwise::row_of_onnx(activation);
  if (!row || row->arity != 1 || !pointwise::is_fusible(*row) || pointwise::onnx_name(*row).empty())
    c.unsupported("activation '" + activation.substr(0, 40) + "'");
  Attributes attributes;
  std::size_t i = 0;
  for (const pointwise::Parameter& p : {row->p, row->q})
    if (p.name && p.type == pointwise::ParameterType::kReal)
      attributes.set(Key<double>{p.name}, given(p.name, i++).value_or(p.fallback));
  return c.emit(row->op, {x}, attributes);
}

ValueId add_input(OpContext& c, ValueId x, std::size_t i) {
  return c.has_input(i) ? binary(c, Op::kAdd, x, c.input(i)) : x;
}

namespace {

// One number for each that `other` has.
ValueId as_many(OpContext& c, ValueId x, ValueId other) {
  const auto count = [&](ValueId id) { return element_count(shape_of(c, id)); };
  if (!count(x).is_constant(1) || !count(other).constant() || count(other).is_constant(1)) return x;
  return c.emit(Op::kExpand, {reshape(c, x, {1})}, {{key::kShape, shape_of(c, other)}});
}

}  // namespace

// The older operators take a scale for each channel with one zero point for all, and the reverse.
ValueId dequantized(OpContext& c, std::size_t x, std::size_t scale, std::size_t zero, int64_t axis) {
  std::vector<ValueId> in{c.input(x), c.input(scale)};
  if (c.has_input(zero)) {
    in.push_back(as_many(c, c.inputs[zero], in[1]));
    in[1] = as_many(c, in[1], in[2]);
  }
  return c.emit(Op::kDequantizeLinear, in,
                {{key::kAxis, axis}, {key::kBlockSize, 0}, {key::kTo, static_cast<int64_t>(DType::kF32)}});
}
ValueId quantized(OpContext& c, ValueId x, std::size_t scale, std::size_t zero, DType type) {
  std::vector<ValueId> in{x, c.input(scale)};
  if (c.has_input(zero)) in.push_back(c.inputs[zero]);
  return c.emit(Op::kQuantizeLinear, in,
                {{key::kAxis, 0}, {key::kBlockSize, 0}, {key::kTo, static_cast<int64_t>(type)}});
}

}  // namespace ark::ops
