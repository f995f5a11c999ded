// Cutting and joining: Slice, Split, Concat, Pad, Tile, depth and space, triangles.
#include <numeric>
#include <set>

#include "base/ir/keys.h"
#include "base/ir/slice_bounds.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

// Attributes up to opset 9, inputs afterwards.
std::optional<Shape> bounds_of(OpContext& c, const char* name, std::size_t i) {
  if (c.opset >= 10) return known(c, i);
  const auto ints = c.attr_ints(name);
  return Shape(ints.begin(), ints.end());
}

void slice_at_run_time(OpContext& c) {
  std::vector<ValueId> in{c.input(0)};
  if (c.opset < 10) {
    for (const char* name : {"starts", "ends"}) in.push_back(c.constant_ints(c.attr_ints(name)));
    in.push_back(c.has_attr("axes") ? c.constant_ints(c.attr_ints("axes")) : kNoValue);
    in.push_back(kNoValue);
  } else {
    for (std::size_t i = 1; i < 3; ++i) in.push_back(cast(c, c.input(i), DType::kI64));
    for (std::size_t i = 3; i < 5; ++i)
      in.push_back(c.has_input(i) ? cast(c, c.inputs[i], DType::kI64) : kNoValue);
  }
  c.outputs[0] = c.emit(Op::kSlice, in);
}

void slice(OpContext& c) {
  const auto starts = bounds_of(c, "starts", 1), ends = bounds_of(c, "ends", 2);
  bool axes_given = false;
  auto axes = ints_of(c, "axes", 3, &axes_given);
  auto steps = c.has_input(4) ? known_ints(c, 4) : std::vector<int64_t>{};
  const auto& x = value_of(c, c.input(0)).shape;
  if (!starts || !ends || !axes || !steps || !x) return slice_at_run_time(c);
  if (!axes_given) {
    axes->resize(starts->size());
    std::iota(axes->begin(), axes->end(), 0);
  }
  if (steps->empty()) steps->assign(starts->size(), 1);
  if (ends->size() != starts->size() || axes->size() != starts->size() || steps->size() != starts->size())
    c.fail("starts, ends, axes and steps are of different lengths");
  for (int64_t& a : *axes) a = c.axis(a, static_cast<int>(x->size()));
  if (std::set<int64_t>(axes->begin(), axes->end()).size() != axes->size()) c.fail("has an axis twice");
  for (const int64_t s : *steps)
    if (s == 0) c.fail("a Slice with a step of 0");
  const auto attributes = slice_bounds(*x, *axes, *starts, *ends, *steps, c.graph.assumptions);
  if (attributes)
    c.outputs[0] = c.emit(Op::kSlice, {c.input(0)}, *attributes);
  else
    slice_at_run_time(c);
}

// Equal parts; the last one is smaller where `num_outputs` does not divide the size.
Shape equal_parts(const Expr& size, int64_t parts) {
  const Expr part = ceildiv(size, Expr(parts));
  Shape sizes(static_cast<std::size_t>(parts), part);
  if (size.constant()) {
    Expr left = size;
    for (Expr& s : sizes) {
      s = min(s, left);
      left = left - s;
    }
  } else {
    sizes.back() = size - part * Expr(parts - 1);
  }
  return sizes;
}

void split(OpContext& c) {
  const ValueId x = c.input(0);
  const int count = static_cast<int>(c.node.outputs.size());
  const int64_t axis = c.axis(c.attr_int("axis", 0), c.rank(0));
  Attributes attributes{{key::kAxis, axis}};
  std::vector<ValueId> in{x};
  if (c.has_attr("split")) {
    const auto sizes = c.attr_ints("split");
    attributes.set(key::kSizes, Shape(sizes.begin(), sizes.end()));
  } else if (const auto sizes = known(c, 1)) {
    attributes.set(key::kSizes, *sizes);
  } else if (c.has_input(1)) {
    in.push_back(c.input(1));
  } else {
    const Expr& size = shape_of(c, x)[axis];
    if (c.opset < 18 && size.constant() && *size.constant() % count != 0)
      c.fail("an axis of " + size.str() + " does not split into " + std::to_string(count) + " equal parts");
    attributes.set(key::kSizes, equal_parts(size, count));
  }
  c.outputs = c.emit_many(Op::kSplit, in, attributes, count);
}

void concat(OpContext& c) {
  int rank = -1;
  for (const ValueId id : c.inputs)
    if (id != kNoValue && value_of(c, id).shape) rank = static_cast<int>(rank_of(c, id));
  if (rank < 0) c.unsupported("the rank of its inputs is not known");
  const int64_t axis = c.axis(c.attr_int("axis", c.opset < 4 ? 1 : 0), rank);
  std::vector<ValueId> in;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) in.push_back(c.input(i));
  c.outputs[0] = in.size() == 1 ? in[0] : c.emit(Op::kConcat, in, {{key::kAxis, axis}});
}

// Amounts for some axes -> amounts for all: begins, then ends.
Shape pads_of_all(OpContext& c, const Shape& pads, const std::vector<int64_t>& axes) {
  const auto rank = static_cast<std::size_t>(c.rank(0));
  if (pads.size() != 2 * axes.size())
    c.fail("Pad has " + std::to_string(pads.size()) + " amounts for " + std::to_string(axes.size()) +
           " axes");
  Shape all(2 * rank, Expr(0));
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const auto a = static_cast<std::size_t>(c.axis(axes[i], static_cast<int>(rank)));
    all[a] = pads[i];
    all[a + rank] = pads[i + axes.size()];
  }
  return all;
}

void pad(OpContext& c) {
  Attributes attributes{{key::kMode, c.attr_word("mode", {"constant", "reflect", "edge", "wrap"})}};
  std::vector<ValueId> in{c.input(0), kNoValue, kNoValue};
  std::vector<int64_t> axes(static_cast<std::size_t>(c.rank(0)));
  std::iota(axes.begin(), axes.end(), 0);
  if (c.opset < 11) {
    const auto pads = c.attr_ints(c.opset < 2 ? "paddings" : "pads");
    attributes.set(key::kPadding, pads_of_all(c, Shape(pads.begin(), pads.end()), axes));
    if (c.attr_float("value", 0) != 0) in[2] = scalar(c, c.attr_float("value", 0), dtype_of(c, in[0]));
    c.outputs[0] = c.emit(Op::kPad, in, attributes);
    return;
  }
  if (c.has_input(2)) in[2] = reshape(c, c.input(2), {});
  const auto given = c.has_input(3) ? known_ints(c, 3) : axes;
  const Value& amounts = value_of(c, c.input(1));
  // Computed ones may lie in a row, as ONNX Runtime reads them.
  if (amounts.constant && amounts.shape->size() != 1)
    c.fail("pads must have rank 1, not " + str(*amounts.shape));
  const auto pads = known(c, 1);
  if (pads && given) {
    attributes.set(key::kPadding, pads_of_all(c, *pads, *given));
  } else {
    in[1] = c.input(1);
    if (c.has_input(3)) in.push_back(c.input(3));
  }
  c.outputs[0] = c.emit(Op::kPad, in, attributes);
}

void tile(OpContext& c) {
  if (c.opset < 6)
    c.unsupported("Tile of opset " + std::to_string(c.opset) + "; export with opset 7 or later");
  const auto repeats = known(c, 1);
  if (repeats)
    c.outputs[0] = c.emit(Op::kTile, {c.input(0)}, {{key::kRepeats, *repeats}});
  else
    c.outputs[0] = c.emit(Op::kTile, {c.input(0), c.input(1)});
}

void space_blocks(OpContext& c, Op op) {
  const std::string mode = c.attr_word("mode", {"DCR", "CRD"});
  c.outputs[0] =
      c.emit(op, {c.input(0)}, {{key::kBlocksize, c.attr_int("blocksize", 0)}, {key::kMode, mode}});
}
void depth_to_space(OpContext& c) { space_blocks(c, Op::kDepthToSpace); }
void space_to_depth(OpContext& c) { space_blocks(c, Op::kSpaceToDepth); }

// Cuts or pads each axis to its target, evenly on both sides; the odd element goes to the end. All by arithmetic on
// sizes, which folds to numbers or expressions where they are known.
void center_crop_pad(OpContext& c) {
  const auto rank = static_cast<std::size_t>(c.rank(0));
  std::vector<int64_t> axes = c.attr_ints("axes");
  if (axes.empty())
    for (std::size_t i = 0; i < rank; ++i) axes.push_back(static_cast<int64_t>(i));
  Shape sizes;
  for (int64_t& a : axes) sizes.push_back(shape_of(c, c.input(0))[a = c.axis(a, static_cast<int>(rank))]);
  if (std::set<int64_t>(axes.begin(), axes.end()).size() != axes.size()) c.fail("has an axis twice");
  if (constant_dim(c, c.input(1), 0, "the target shape") != std::ssize(axes))
    c.fail("one target size an axis is needed");
  if (const auto target = known_ints(c, 1))
    for (const int64_t size : *target)
      if (size < 0) c.fail("a target size of " + std::to_string(size));
  const ValueId have = dims(c, sizes), none = scalar(c, 0, DType::kI64), two = scalar(c, 2, DType::kI64),
                want = binary(c, Op::kMax, cast(c, c.input(1), DType::kI64), none),
                named = c.constant_ints(axes);
  const auto excess = [&](ValueId a, ValueId b) {
    return binary(c, Op::kMax, binary(c, Op::kSub, a, b), none);
  };
  const ValueId begin = binary(c, Op::kDiv, excess(have, want), two),
                end = binary(c, Op::kAdd, begin, binary(c, Op::kMin, have, want));
  const ValueId cut = standard_results(c, "Slice", {c.input(0), begin, end, named})[0];
  const ValueId lack = excess(want, have), before = binary(c, Op::kDiv, lack, two);
  const ValueId pads = c.emit(Op::kConcat, {before, binary(c, Op::kSub, lack, before)}, {{key::kAxis, 0}});
  c.outputs[0] = standard_results(c, "Pad", {cut, pads, kNoValue, named})[0];
}

// (cache, update, first index [B]?): the update's slices overwrite the cache's along `axis` (a static
// key-value cache).
void tensor_scatter(OpContext& c) {
  const ValueId cache = c.input(0), update = c.input(1);
  const Shape shape = shape_of(c, update);
  const auto axis = static_cast<std::size_t>(c.axis(c.attr_int("axis", -2), c.rank(0)));
  const Shape rows_of_cache = shape_of(c, cache);
  if (axis == 0 || shape.size() <= axis) c.fail("axis 0 is the batch");
  if (rows_of_cache.size() != shape.size()) c.fail("cache and update differ in rank");
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (i != axis)
      c.require_equal(shape[i], rows_of_cache[i], "axis " + std::to_string(i) + " of the update");
  Shape along(shape.size(), Expr(1)), rows(shape.size(), Expr(1));
  along[axis] = shape[axis];
  rows[0] = shape[0];
  ValueId index = reshape(c, range(c, 0, shape[axis]), along);
  if (c.has_input(2)) index = binary(c, Op::kAdd, index, reshape(c, cast(c, c.inputs[2], DType::kI64), rows));
  if (c.attr_word("mode", {"linear", "circular"}) == "circular")
    index = c.emit(Op::kMod, {index, dims(c, {rows_of_cache[axis]})});
  index = c.emit(Op::kExpand, {index}, {{key::kShape, shape}});
  c.outputs[0] = c.emit(Op::kScatterElements, {cache, index, update},
                        {{key::kAxis, static_cast<int64_t>(axis)}, {key::kReduction, "none"}});
}

void trilu(OpContext& c) {
  Attributes attributes{{key::kUpper, c.attr_int("upper", 1)}};
  const auto k = c.has_input(1) ? known_ints(c, 1) : std::vector<int64_t>{0};
  if (k && k->size() != 1) c.fail("k must be one number, not " + std::to_string(k->size()));
  if (k && k->size() == 1) {
    attributes.set(key::kDiagonal, (*k)[0]);
    c.outputs[0] = c.emit(Op::kTrilu, {c.input(0)}, attributes);
  } else {
    c.outputs[0] = c.emit(Op::kTrilu, {c.input(0), c.input(1)}, attributes);
  }
}

void reverse_sequence(OpContext& c) {
  const int64_t batch = c.attr_int("batch_axis", 1), time = c.attr_int("time_axis", 0);
  c.outputs[0] =
      c.emit(Op::kReverseSequence, {c.input(0), c.input(1)},
             {{key::kBatchAxis, c.axis(batch, c.rank(0))}, {key::kTimeAxis, c.axis(time, c.rank(0))}});
}

}  // namespace

std::span<const Entry> slicing_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "Slice", slice},
      {kOnnx, "Split", split},
      {kOnnx, "Concat", concat},
      {kOnnx, "Pad", pad},
      {kOnnx, "Tile", tile},
      {kOnnx, "DepthToSpace", depth_to_space},
      {kOnnx, "SpaceToDepth", space_to_depth},
      {kOnnx, "Trilu", trilu},
      {kOnnx, "CenterCropPad", center_crop_pad},
      {kOnnx, "TensorScatter", tensor_scatter},
      {kOnnx, "ReverseSequence", reverse_sequence},
  };
  return kTable;
}

}  // namespace ark::ops
