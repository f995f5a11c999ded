// Reshape, Flatten, Squeeze, Unsqueeze, Expand, Transpose: targets resolved symbolically where they can be.
#include <algorithm>
#include <numeric>

#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

// 0 copies the input's size (unless allow_zero), -1 takes what is left. nullopt if that needs an unknown
// rank.
std::optional<Shape> resolved(OpContext& c, const Shape& target, bool allow_zero) {
  const auto& x = value_of(c, c.input(0)).shape;
  Shape shape = target;
  std::optional<std::size_t> open;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i].is_constant(-1)) {
      if (open) c.fail("a Reshape target with more than one -1");
      open = i;
    } else if (shape[i].is_constant(0) && !allow_zero) {
      if (!x) return std::nullopt;
      if (i >= x->size())
        c.fail("a Reshape target copies axis " + std::to_string(i) + ", which the input lacks");
      shape[i] = (*x)[i];
    } else if (shape[i].constant().value_or(0) < 0) {
      c.fail("a Reshape target with size " + shape[i].str());
    }
  }
  if (!open) return shape;
  if (!x) return std::nullopt;
  Expr rest = 1;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (i != *open) rest = rest * shape[i];
  if (rest.is_constant(0)) {
    shape[*open] = 0;
    return shape;
  }
  const Expr count = element_count(*x);
  if (count.constant() && rest.constant() && *count.constant() % *rest.constant() != 0)
    c.fail("cannot reshape " + str(*x) + " to " + str(target));
  shape[*open] = floordiv(count, rest);
  return shape;
}

void reshape_op(OpContext& c) {
  const bool allow_zero = c.attr_int("allowzero", 0) != 0;
  std::optional<Shape> target;
  if (c.has_attr("shape") && !c.has_input(1)) {  // opset 1
    const auto ints = c.attr_ints("shape");
    target = Shape(ints.begin(), ints.end());
  } else {
    target = known(c, 1);
  }
  if (target) target = resolved(c, *target, allow_zero);
  if (target)
    c.outputs[0] = reshape(c, c.input(0), *target);
  else
    c.outputs[0] = c.emit(Op::kReshape, {c.input(0), c.input(1)}, {{key::kAllowzero, int64_t{allow_zero}}});
}

void flatten(OpContext& c) {
  const Shape& x = shape_of(c, c.input(0));
  const int64_t rank = static_cast<int64_t>(x.size());
  int64_t axis = c.attr_int("axis", 1);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis > rank) c.fail("axis is outside [0, " + std::to_string(rank) + "]");
  const Shape outer(x.begin(), x.begin() + axis), inner(x.begin() + axis, x.end());
  c.outputs[0] = reshape(c, c.input(0), {element_count(outer), element_count(inner)});
}

ValueId sizes_as_value(OpContext& c, const Shape& shape) {
  return c.emit(Op::kDims, {}, {{key::kValues, shape}, {key::kScalar, 0}});
}

// Of `rank` axes those that the node's second operand names have `named`, others `other`: only the run tells which.
ValueId marked_axes(OpContext& c, int64_t rank, int64_t axes, int64_t named, int64_t other) {
  const ValueId all = c.constant_ints(std::vector<int64_t>(static_cast<std::size_t>(rank), other)),
                marks = c.constant_ints(std::vector<int64_t>(static_cast<std::size_t>(axes), named));
  return c.emit(Op::kScatterElements, {all, c.input(1), marks},
                {{key::kAxis, 0}, {key::kReduction, std::string("none")}});
}

int64_t count_of_axes(OpContext& c) {
  const Shape& axes = shape_of(c, c.input(1));
  const auto count = axes.size() == 1 ? axes[0].constant() : std::nullopt;
  if (!count)
    c.unsupported("axes that are computed at run time, and not how many; export with constant axes");
  return *count;
}

// Which axes go is what the run tells; how many, the operand's size.
void squeeze_computed(OpContext& c) {
  const Shape x = shape_of(c, c.input(0));
  const int64_t rank = std::ssize(x), axes = count_of_axes(c);
  if (axes > rank) c.fail(std::to_string(axes) + " axes of a tensor of rank " + std::to_string(rank));
  const ValueId keep = cast(c, marked_axes(c, rank, axes, 0, 1), DType::kBool);
  const ValueId kept = c.emit(Op::kCompress, {sizes_as_value(c, x), keep}, {{key::kAxis, 0}});
  c.outputs[0] =
      c.emit(Op::kReshape, {c.input(0), reshape(c, kept, {Expr(rank - axes)})}, {{key::kAllowzero, 1}});
}

// What is kept of sizes that may be 1: a tensor of a rank that only the run tells.
void squeeze_ones(OpContext& c, const Shape& x) {
  const ValueId sizes = sizes_as_value(c, x);
  const ValueId keep = c.emit(Op::kNot, {binary(c, Op::kEqual, sizes, c.constant_ints({1}))});
  const ValueId kept = c.emit(Op::kCompress, {sizes, keep}, {{key::kAxis, 0}});
  c.outputs[0] = c.emit(Op::kReshape, {c.input(0), kept}, {{key::kAllowzero, 1}});
}

// The sizes stand in order where no axis is added: the i-th place that is left has the i-th.
void unsqueeze_computed(OpContext& c) {
  const Shape x = shape_of(c, c.input(0));
  const int64_t axes = count_of_axes(c), rank = std::ssize(x) + axes;
  if (x.empty()) {
    c.outputs[0] = reshape(c, c.input(0), Shape(static_cast<std::size_t>(rank), Expr(1)));
    return;
  }
  const ValueId left = marked_axes(c, rank, axes, 0, 1), one = c.constant_ints({1});
  const ValueId count = c.emit(Op::kCumSum, {left}, {{key::kAxis, 0}});
  const ValueId place = binary(c, Op::kSub, count, one);  // before the first -1, which is not looked at
  const ValueId sizes = c.emit(Op::kGather, {sizes_as_value(c, x), place}, {{key::kAxis, 0}});
  const ValueId target = c.emit(Op::kWhere, {cast(c, left, DType::kBool), sizes, one});
  c.outputs[0] = c.emit(Op::kReshape, {c.input(0), target}, {{key::kAllowzero, 1}});
}

void squeeze(OpContext& c) {
  bool present = false;
  const auto axes = ints_of(c, "axes", 1, &present);
  if (!axes) return squeeze_computed(c);
  const Shape x = shape_of(c, c.input(0));
  if (!present && std::ranges::any_of(x, [](const Expr& e) { return !e.constant(); }))
    return squeeze_ones(c, x);
  std::vector<bool> drop(x.size());
  for (const int64_t a : *axes) drop[c.axis(a, static_cast<int>(x.size()))] = true;
  Shape shape;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!present) drop[i] = x[i].is_constant(1);
    if (!drop[i])
      shape.push_back(x[i]);
    else
      c.require_equal(x[i], Expr(1), "the size of axis " + std::to_string(i));
  }
  c.outputs[0] = reshape(c, c.input(0), shape);
}

void unsqueeze(OpContext& c) {
  const auto axes = ints_of(c, "axes", 1);
  if (!axes) return unsqueeze_computed(c);
  const Shape x = shape_of(c, c.input(0));
  const int rank = static_cast<int>(x.size() + axes->size());
  std::vector<bool> added(static_cast<std::size_t>(rank));
  for (const int64_t a : *axes) {
    const auto i = static_cast<std::size_t>(c.axis(a, rank));
    if (added[i]) c.fail("axis " + std::to_string(a) + " is named twice");
    added[i] = true;
  }
  Shape shape;
  auto next = x.begin();
  for (const bool one : added) shape.push_back(one ? Expr(1) : *next++);
  c.outputs[0] = reshape(c, c.input(0), shape);
}

void expand(OpContext& c) {
  const ValueId x = c.input(0);
  const auto target = known(c, 1);
  if (!target || !value_of(c, x).shape) {
    c.outputs[0] = c.emit(Op::kExpand, {x, c.input(1)});
    return;
  }
  const Shape& from = shape_of(c, x);
  for (const Expr& size : *target)
    if (size.constant().value_or(0) < 0) c.fail("Expand to a size of " + size.str() + "; 1 keeps an axis");
  const auto to = shape_rules::broadcast_shape(from, *target);
  if (!to) c.fail("sizes " + str(from) + " and " + str(*target) + " do not broadcast");
  c.outputs[0] = *to == from ? x : c.emit(Op::kExpand, {x}, {{key::kShape, *to}});
}

void transpose_op(OpContext& c) {
  std::vector<int64_t> perm = c.attr_ints("perm");
  if (perm.empty()) {
    perm.resize(static_cast<std::size_t>(c.rank(0)));
    std::iota(perm.rbegin(), perm.rend(), 0);
  }
  for (int64_t& p : perm) p = c.axis(p, static_cast<int>(perm.size()));
  c.outputs[0] = transpose(c, c.input(0), perm);
}

}  // namespace

std::span<const Entry> reshape_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "Reshape", reshape_op},  {kOnnx, "Flatten", flatten}, {kOnnx, "Squeeze", squeeze},
      {kOnnx, "Unsqueeze", unsqueeze}, {kOnnx, "Expand", expand},   {kOnnx, "Transpose", transpose_op},
  };
  return kTable;
}

}  // namespace ark::ops
