// Arithmetic, comparison and logic, with numpy's broadcasting.
#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

template <Op op>
void unary(OpContext& c) {
  c.outputs[0] = c.emit(op, {c.input(0)});
}

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
void two(OpContext& c) {
  c.outputs[0] = c.emit(op, {c.input(0), aligned(c)});
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

void mod(OpContext& c) {
  c.outputs[0] = c.emit(Op::kMod, {c.input(0), c.input(1)}, {{key::kFmod, c.attr_int("fmod", 0)}});
}

void bit_shift(OpContext& c) {
  const std::string direction = c.attr_string("direction", "");
  if (direction != "LEFT" && direction != "RIGHT") c.fail("direction must be LEFT or RIGHT");
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

void where(OpContext& c) { c.outputs[0] = c.emit(Op::kWhere, {c.input(0), c.input(1), c.input(2)}); }

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
  if (dtype_of(c, x) == DType::kString || type == DType::kString)
    c.unsupported("casts of strings are not supported");
  c.outputs[0] = cast(c, x, type);
}

void cast_op(OpContext& c) {
  if (!c.has_attr("to")) c.fail("attribute 'to' is missing");
  cast_to(c, type_numbered(c, c.attr_int("to", 0)));
}
void cast_like(OpContext& c) { cast_to(c, dtype_of(c, c.input(1))); }

void is_inf(OpContext& c) {
  c.outputs[0] = c.emit(Op::kIsInf, {c.input(0)},
                        {{key::kDetectNegative, c.attr_int("detect_negative", 1)},
                         {key::kDetectPositive, c.attr_int("detect_positive", 1)}});
}

}  // namespace

std::span<const Entry> pointwise_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "Neg", unary<Op::kNeg>},
      {kOnnx, "Abs", unary<Op::kAbs>},
      {kOnnx, "Sign", unary<Op::kSign>},
      {kOnnx, "Reciprocal", unary<Op::kReciprocal>},
      {kOnnx, "Sqrt", unary<Op::kSqrt>},
      {kOnnx, "Exp", unary<Op::kExp>},
      {kOnnx, "Log", unary<Op::kLog>},
      {kOnnx, "Sin", unary<Op::kSin>},
      {kOnnx, "Cos", unary<Op::kCos>},
      {kOnnx, "Tan", unary<Op::kTan>},
      {kOnnx, "Asin", unary<Op::kAsin>},
      {kOnnx, "Acos", unary<Op::kAcos>},
      {kOnnx, "Atan", unary<Op::kAtan>},
      {kOnnx, "Sinh", unary<Op::kSinh>},
      {kOnnx, "Cosh", unary<Op::kCosh>},
      {kOnnx, "Tanh", unary<Op::kTanh>},
      {kOnnx, "Asinh", unary<Op::kAsinh>},
      {kOnnx, "Acosh", unary<Op::kAcosh>},
      {kOnnx, "Atanh", unary<Op::kAtanh>},
      {kOnnx, "Erf", unary<Op::kErf>},
      {kOnnx, "Floor", unary<Op::kFloor>},
      {kOnnx, "Ceil", unary<Op::kCeil>},
      {kOnnx, "Round", unary<Op::kRound>},
      {kOnnx, "Not", unary<Op::kNot>},
      {kOnnx, "BitwiseNot", unary<Op::kBitNot>},
      {kOnnx, "IsNaN", unary<Op::kIsNaN>},
      {kOnnx, "IsInf", is_inf},
      {kOnnx, "Add", two<Op::kAdd>},
      {kOnnx, "Sub", two<Op::kSub>},
      {kOnnx, "Mul", two<Op::kMul>},
      {kOnnx, "Div", two<Op::kDiv>},
      {kOnnx, "Pow", two<Op::kPow>},
      {kOnnx, "Mod", mod},
      {kOnnx, "And", two<Op::kAnd>},
      {kOnnx, "Or", two<Op::kOr>},
      {kOnnx, "Xor", two<Op::kXor>},
      {kOnnx, "BitwiseAnd", two<Op::kBitAnd>},
      {kOnnx, "BitwiseOr", two<Op::kBitOr>},
      {kOnnx, "BitwiseXor", two<Op::kBitXor>},
      {kOnnx, "BitShift", bit_shift},
      {kOnnx, "Equal", two<Op::kEqual>},
      {kOnnx, "Less", two<Op::kLess>},
      {kOnnx, "LessOrEqual", two<Op::kLessOrEqual>},
      {kOnnx, "Greater", two<Op::kGreater>},
      {kOnnx, "GreaterOrEqual", two<Op::kGreaterOrEqual>},
      {kOnnx, "Sum", variadic<Op::kAdd>},
      {kOnnx, "Min", variadic<Op::kMin>},
      {kOnnx, "Max", variadic<Op::kMax>},
      {kOnnx, "Mean", mean},
      {kOnnx, "Clip", clip},
      {kOnnx, "Where", where},
      {kOnnx, "Cast", cast_op},
      {kOnnx, "CastLike", cast_like},
  };
  return kTable;
}

}  // namespace ark::ops
