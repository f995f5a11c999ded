// Arithmetic, comparison and logic, with numpy's broadcasting.
#include <algorithm>

#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

// Before opset 7 the second operand could be aligned at an axis of the first.
ValueId aligned(OpContext& c) {
  const ValueId b = c.input(1);
  if (c.opset >= 7 || !c.attr_int("broadcast", 0) || !c.has_attr("axis")) return b;
  Shape shape = shape_of(c, b);
  const int64_t axis = c.axis(c.attr_int("axis", 0), c.rank(0));
  while (static_cast<int64_t>(shape.size()) + axis < c.rank(0)) shape.emplace_back(1);
  return reshape(c, b, shape);
}

template <Op op>
ValueId fold_inputs(OpContext& c) {
  ValueId sum = c.input(0);
  for (std::size_t i = 1; i < c.inputs.size(); ++i) sum = c.emit(op, {sum, c.input(i)});
  return sum;
}

template <Op op>
void variadic(OpContext& c) {
  c.outputs[0] = fold_inputs<op>(c);
}

void mean(OpContext& c) {
  const ValueId count = scalar(c, static_cast<double>(c.inputs.size()), dtype_of(c, c.input(0)));
  c.outputs[0] = binary(c, Op::kDiv, fold_inputs<Op::kAdd>(c), count);
}

void bit_shift(OpContext& c) {
  const std::string direction = c.attr_word("direction", {"LEFT", "RIGHT"});
  c.outputs[0] =
      c.emit(Op::kBitShift, {c.input(0), c.input(1)}, {{key::kLeft, int64_t{direction == "LEFT"}}});
}

void clip(OpContext& c) {
  std::vector<ValueId> in{c.input(0), kNoValue, kNoValue};
  if (c.opset < 11) {
    if (c.has_attr("min")) in[1] = scalar(c, c.attr_float("min", 0), dtype_of(c, in[0]));
    if (c.has_attr("max")) in[2] = scalar(c, c.attr_float("max", 0), dtype_of(c, in[0]));
  } else {
    for (std::size_t i = 1; i < 3; ++i)
      if (c.has_input(i)) in[i] = c.inputs[i];
  }
  c.outputs[0] = c.emit(Op::kClip, in);
}

void equal(OpContext& c) {
  c.outputs[0] = binary(c, Op::kEqual, bits_of_texts(c, c.input(0)), bits_of_texts(c, aligned(c)));
}

void where(OpContext& c) {
  const ValueId yes = c.input(1), no = c.input(2);
  const ValueId y = c.emit(Op::kWhere, {c.input(0), bits_of_texts(c, yes), bits_of_texts(c, no)});
  c.outputs[0] = dtype_of(c, yes) == DType::kString ? bit_cast(c, y, DType::kString) : y;
}

// A type by its number in the file; only types that ark computes with.
DType type_numbered(OpContext& c, int64_t number) {
  const DType type = dtype_numbered(number);
  if (bits_of(type) == 0)
    c.unsupported("element type " + std::to_string(number) +
                  " is not supported; export with a standard numeric type");
  return type;
}

void cast_to(OpContext& c, DType type) {
  const ValueId x = c.input(0);
  if (is_narrow_float(type) && bits_of(type) < 16 && c.attr_int("saturate", 1) == 0)
    c.unsupported("casts to " + std::string(name_of(type)) + " that do not saturate are not supported");
  c.outputs[0] = cast(c, x, type);
}

void cast_op(OpContext& c) {
  if (!c.has_attr("to")) c.fail("attribute 'to' is missing");
  cast_to(c, type_numbered(c, c.attr_int("to", 0)));
}
void cast_like(OpContext& c) { cast_to(c, dtype_of(c, c.input(1))); }

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

// A parameter of a row as the file has it.
Attribute parameter(OpContext& c, const pointwise::Parameter& p) {
  const std::string name = p.name;
  if (p.type == pointwise::ParameterType::kInt)
    return {Key<int64_t>{p.name}, c.attr_int(name, static_cast<int64_t>(p.fallback))};
  if (p.type == pointwise::ParameterType::kReal) return {Key<double>{p.name}, c.attr_float(name, p.fallback)};
  return {Key<std::string>{p.name}, c.attr_word(name, {"none", p.word})};
}

std::vector<Entry> make_table() {
  std::vector<Entry> table = {
      {kOnnx, "BitShift", bit_shift},
      {kOnnx, "Sum", variadic<Op::kAdd>},
      {kOnnx, "Min", variadic<Op::kMin>},
      {kOnnx, "Max", variadic<Op::kMax>},
      {kOnnx, "Mean", mean},
      {kOnnx, "Clip", clip},
      {kOnnx, "Where", where},
      {kOnnx, "Equal", equal},
      {kOnnx, "Cast", cast_op},
      {kOnnx, "CastLike", cast_like},
      {kOnnx, "PRelu", prelu},
  };
  for (const pointwise::Row& row : pointwise::rows()) {
    const std::string_view name = pointwise::onnx_name(row);
    const bool own = name.empty() || std::any_of(table.begin(), table.end(),
                                                 [&](const Entry& e) { return e.op_type == name; });
    if (!own) table.push_back({kOnnx, name, by_row});
  }
  return table;
}

}  // namespace

void by_row(OpContext& c) {
  const pointwise::Row& row = *pointwise::row_of_onnx(c.node.op_type);
  std::vector<ValueId> in{c.input(0)};
  if (row.arity == 2) in.push_back(aligned(c));
  Attributes attributes;
  for (const pointwise::Parameter& p : {row.p, row.q})
    if (p.name) attributes.set(parameter(c, p));
  c.outputs[0] = c.emit(row.op, in, attributes);
}

std::span<const Entry> pointwise_table() {
  static const auto* table = new std::vector<Entry>(make_table());
  return *table;
}

}  // namespace ark::ops
