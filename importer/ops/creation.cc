// Tensors from attributes, sizes and ranges.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/ir/keys.h"
#include "base/texts.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

ValueId make(OpContext& c, Tensor tensor) {
  return c.graph.add_constant(make_constant(std::move(tensor), c.node.outputs[0]));
}

void constant(OpContext& c) {
  if (const onnx::Attribute* value = c.node.attribute("value")) {
    if (!value->t.constant) c.fail("attribute 'value' holds no tensor");
    c.outputs[0] = c.graph.add_constant(value->t.constant);
  } else if (c.has_attr("value_float")) {
    c.outputs[0] = c.constant_float(static_cast<float>(c.attr_float("value_float", 0)));
  } else if (c.has_attr("value_int")) {
    c.outputs[0] =
        make(c, Tensor::of<int64_t>(DType::kI64, {}, std::vector<int64_t>{c.attr_int("value_int", 0)}));
  } else if (c.has_attr("value_floats")) {
    const auto values = c.attr_floats("value_floats");
    c.outputs[0] = make(c, Tensor::of<float>(DType::kF32, {static_cast<int64_t>(values.size())},
                                             std::vector<float>(values.begin(), values.end())));
  } else if (c.has_attr("value_ints")) {
    c.outputs[0] = c.constant_ints(c.attr_ints("value_ints"));
  } else if (const onnx::Attribute* text = c.node.attribute("value_string")) {
    c.outputs[0] = make(c, tensor_of_texts({}, {&text->s, 1}));
  } else if (const onnx::Attribute* texts = c.node.attribute("value_strings")) {
    c.outputs[0] = make(c, tensor_of_texts({static_cast<int64_t>(texts->strings.size())}, texts->strings));
  } else {
    c.unsupported("a sparse Constant is not supported");
  }
}

void shape(OpContext& c) {
  const Shape& x = shape_of(c, c.input(0));
  const int64_t rank = static_cast<int64_t>(x.size());
  const auto clamped = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t begin = clamped(c.attr_int("start", 0)), end = clamped(c.attr_int("end", rank));
  c.outputs[0] = dims(c, end > begin ? Shape(x.begin() + begin, x.begin() + end) : Shape{});
}

void size(OpContext& c) {
  c.outputs[0] = c.emit(Op::kDims, {},
                        {{key::kValues, Shape{element_count(shape_of(c, c.input(0)))}}, {key::kScalar, 1}});
}

void constant_of_shape(OpContext& c) {
  Tensor value = Tensor::zeros(DType::kF32, {1});
  if (const onnx::Attribute* a = c.node.attribute("value")) {
    if (!a->t.constant || a->t.constant->size() != 1) c.fail("attribute 'value' must hold one number");
    value = materialise(*a->t.constant);
  }
  const auto target = known(c, 0);
  if (target)
    c.outputs[0] = c.emit(Op::kConstantOfShape, {}, {{key::kShape, *target}, {key::kValue, value}});
  else
    c.outputs[0] = c.emit(Op::kConstantOfShape, {c.input(0)}, {{key::kValue, value}});
}

void range_op(OpContext& c) {
  const auto start = known(c, 0), limit = known(c, 1), delta = known(c, 2);
  const DType type = dtype_of(c, c.input(0));
  const bool folded =
      start && limit && delta && start->size() == 1 && limit->size() == 1 && delta->size() == 1;
  if (folded && (type == DType::kI64 || type == DType::kI32))
    c.outputs[0] = c.emit(Op::kRange, {},
                          {{key::kStart, *start},
                           {key::kLimit, *limit},
                           {key::kDelta, *delta},
                           {key::kTo, static_cast<int64_t>(type)}});
  else
    c.outputs[0] = c.emit(Op::kRange, {c.input(0), c.input(1), c.input(2)});
}

void eye_like(OpContext& c) {
  const int64_t type = c.attr_int("dtype", static_cast<int64_t>(dtype_of(c, c.input(0))));
  c.outputs[0] = c.emit(Op::kEyeLike, {c.input(0)}, {{key::kDiagonal, c.attr_int("k", 0)}, {key::kTo, type}});
}

// a0 - a1 cos(2 pi n / N) + a2 cos(4 pi n / N), with N the size, or the size - 1 if not periodic.
void cosine_window(OpContext& c, double a0, double a1, double a2) {
  const int64_t type = c.attr_int("output_datatype", 1);
  const DType to = dtype_numbered(type);
  if (!is_floating(to)) c.unsupported("a window of a type other than floating point");
  if (const auto length = known_ints(c, 0); length && length->size() == 1 && length->front() < 0)
    c.fail("a window of " + std::to_string(length->front()) + " elements");
  const ValueId size = cast(c, c.input(0), DType::kI64), one = scalar(c, 1, DType::kI64);
  const ValueId n = c.emit(Op::kRange, {scalar(c, 0, DType::kI64), size, one});
  const ValueId period = c.attr_int("periodic", 1) ? size : binary(c, Op::kSub, size, one);
  const auto real = [&](double value) { return scalar(c, value, DType::kF32); };
  const ValueId turn = binary(c, Op::kDiv, binary(c, Op::kMul, cast(c, n, DType::kF32), real(2 * M_PI)),
                              cast(c, period, DType::kF32));
  ValueId y = binary(c, Op::kSub, real(a0), binary(c, Op::kMul, c.emit(Op::kCos, {turn}), real(a1)));
  if (a2 != 0)
    y = binary(c, Op::kAdd, y,
               binary(c, Op::kMul, c.emit(Op::kCos, {binary(c, Op::kMul, turn, real(2))}), real(a2)));
  c.outputs[0] = cast(c, y, to);
}
void hann_window(OpContext& c) { cosine_window(c, 0.5, 0.5, 0); }
void hamming_window(OpContext& c) { cosine_window(c, 25.0 / 46, 21.0 / 46, 0); }
void blackman_window(OpContext& c) { cosine_window(c, 0.42, 0.5, 0.08); }

void identity(OpContext& c) { c.outputs[0] = c.input(0); }

// Whether a ratio that is stored drops nothing, as PyTorch writes functional dropouts of 0, in training mode.
bool drops_nothing(const OpContext& c) {
  if (!c.has_input(1)) return false;
  const auto& ratio = value_of(c, c.inputs[1]).constant;
  return ratio && ratio->size() == 1 && materialise(*ratio).real(0) == 0;
}

// Inference only: the mask, where wanted, keeps everything.
void dropout(OpContext& c) {
  if (c.has_input(2) && !drops_nothing(c)) {
    const auto training = known_ints(c, 2);
    if (!training || training->empty() || (*training)[0])
      c.unsupported("Dropout in training mode; export the model for inference");
  }
  c.outputs[0] = c.input(0);
  if (!c.wants_output(1)) return;
  const DType type = c.opset >= 10 ? DType::kBool : dtype_of(c, c.input(0));
  const ValueId ones = cast(c, scalar(c, 1, DType::kI64), type);
  c.outputs[1] = c.emit(Op::kExpand, {ones}, {{key::kShape, shape_of(c, c.input(0))}});
}

}  // namespace

std::span<const Entry> creation_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "Constant", constant},
      {kOnnx, "Shape", shape},
      {kOnnx, "Size", size},
      {kOnnx, "ConstantOfShape", constant_of_shape},
      {kOnnx, "Range", range_op},
      {kOnnx, "EyeLike", eye_like},
      {kOnnx, "HannWindow", hann_window},
      {kOnnx, "HammingWindow", hamming_window},
      {kOnnx, "BlackmanWindow", blackman_window},
      {kOnnx, "Identity", identity},
      {kOnnx, "Dropout", dropout},
  };
  return kTable;
}

}  // namespace ark::ops
