// Reductions and operators along an axis.
#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

template <Op op>
void reduce(OpContext& c) {
  const int64_t keep = c.attr_int("keepdims", 1), noop = c.attr_int("noop_with_empty_axes", 0);
  const auto axes = ints_of(c, "axes", 1);
  Attributes attributes{{key::kKeepdims, keep}};
  if (!axes) {
    attributes.set(key::kNoopWithEmptyAxes, noop);
    c.outputs[0] = c.emit(op, {c.input(0), c.input(1)}, attributes);
    return;
  }
  // Reducing no axis is not always nothing: sums of squares and logarithms still map each element.
  if (axes->empty() && noop) {
    attributes.set(key::kAxes, std::vector<int64_t>{});
    attributes.set(key::kNoopWithEmptyAxes, noop);
  } else if (!axes->empty()) {
    std::vector<int64_t> wrapped = *axes;
    for (int64_t& a : wrapped) a = c.axis(a, c.rank(0));
    attributes.set(key::kAxes, wrapped);
  }
  c.outputs[0] = c.emit(op, {c.input(0)}, attributes);
}

template <Op op>
void arg(OpContext& c) {
  c.outputs[0] = c.emit(op, {c.input(0)},
                        {{key::kAxis, c.axis(c.attr_int("axis", 0), c.rank(0))},
                         {key::kKeepdims, c.attr_int("keepdims", 1)},
                         {key::kSelectLastIndex, c.attr_int("select_last_index", 0)}});
}

template <Op op>
void cumulative(OpContext& c) {
  Attributes attributes{{key::kExclusive, int64_t{c.attr_flag("exclusive")}},
                        {key::kReverse, int64_t{c.attr_flag("reverse")}}};
  const auto axis = known_ints(c, 1);
  if (axis && axis->size() == 1) {
    attributes.set(key::kAxis, c.axis((*axis)[0], c.rank(0)));
    c.outputs[0] = c.emit(op, {c.input(0)}, attributes);
  } else {
    c.outputs[0] = c.emit(op, {c.input(0), c.input(1)}, attributes);
  }
}

void top_k(OpContext& c) {
  Attributes attributes{{key::kAxis, c.axis(c.attr_int("axis", -1), c.rank(0))},
                        {key::kLargest, c.attr_int("largest", 1)},
                        {key::kSorted, c.attr_int("sorted", 1)}};
  std::vector<ValueId> in{c.input(0)};
  if (c.opset < 10)
    attributes.set(key::kTopK, Shape{Expr(c.attr_int("k", 0))});
  else if (const auto k = known(c, 1); k && k->size() == 1)
    attributes.set(key::kTopK, *k);
  else
    in.push_back(c.input(1));
  auto results = c.emit_many(Op::kTopK, in, attributes, 2);
  for (std::size_t i = 0; i < c.outputs.size() && i < 2; ++i) c.outputs[i] = results[i];
}

// Before opset 13 the axis cut the tensor in a matrix, whose rows were normalized.
template <typename F>
void along_axis(OpContext& c, F&& apply) {
  const ValueId x = c.input(0);
  const int rank = c.rank(0);
  const int64_t axis = c.axis(c.attr_int("axis", c.opset < 13 ? 1 : -1), std::max(rank, 1));
  if (rank == 0) {
    c.outputs[0] = reshape(c, apply(reshape(c, x, {Expr(1)}), int64_t{0}), {});
    return;
  }
  if (c.opset >= 13 || axis == rank - 1) {
    c.outputs[0] = apply(x, axis);
    return;
  }
  const Shape shape = shape_of(c, x);
  const ValueId matrix = reshape(c, x,
                                 {element_count(Shape(shape.begin(), shape.begin() + axis)),
                                  element_count(Shape(shape.begin() + axis, shape.end()))});
  c.outputs[0] = reshape(c, apply(matrix, int64_t{1}), shape);
}

template <Op op>
void softmax(OpContext& c) {
  along_axis(c, [&](ValueId x, int64_t axis) { return c.emit(op, {x}, {{key::kAxis, axis}}); });
}

// One at the first greatest element of each line, zero elsewhere.
void hardmax(OpContext& c) {
  along_axis(c, [&](ValueId x, int64_t axis) {
    const DType type = dtype_of(c, x);
    const Expr depth = shape_of(c, x)[axis];
    const ValueId best =
        c.emit(Op::kArgMax, {x}, {{key::kAxis, axis}, {key::kKeepdims, 0}, {key::kSelectLastIndex, 0}});
    const ValueId values = cast(c, c.constant_ints({0, 1}), type);
    return c.emit(Op::kOneHot, {best, dims(c, {depth}), values}, {{key::kAxis, axis}});
  });
}

}  // namespace

std::span<const Entry> reduction_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "ReduceSum", reduce<Op::kReduceSum>},
      {kOnnx, "ReduceMean", reduce<Op::kReduceMean>},
      {kOnnx, "ReduceMax", reduce<Op::kReduceMax>},
      {kOnnx, "ReduceMin", reduce<Op::kReduceMin>},
      {kOnnx, "ReduceProd", reduce<Op::kReduceProd>},
      {kOnnx, "ReduceL1", reduce<Op::kReduceL1>},
      {kOnnx, "ReduceL2", reduce<Op::kReduceL2>},
      {kOnnx, "ReduceSumSquare", reduce<Op::kReduceSumSquare>},
      {kOnnx, "ReduceLogSum", reduce<Op::kReduceLogSum>},
      {kOnnx, "ReduceLogSumExp", reduce<Op::kReduceLogSumExp>},
      {kOnnx, "ArgMax", arg<Op::kArgMax>},
      {kOnnx, "ArgMin", arg<Op::kArgMin>},
      {kOnnx, "CumSum", cumulative<Op::kCumSum>},
      {kOnnx, "CumProd", cumulative<Op::kCumProd>},
      {kOnnx, "TopK", top_k},
      {kOnnx, "Softmax", softmax<Op::kSoftmax>},
      {kOnnx, "LogSoftmax", softmax<Op::kLogSoftmax>},
      {kOnnx, "Hardmax", hardmax},
  };
  return kTable;
}

}  // namespace ark::ops
