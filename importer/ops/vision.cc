// Boxes, regions and sampled images.
#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

std::vector<int64_t> ints_or(OpContext& c, const char* name, std::size_t count, int64_t otherwise) {
  std::vector<int64_t> values = c.attr_ints(name);
  if (values.empty()) values.assign(count, otherwise);
  return values;
}

void non_max_suppression(OpContext& c) {
  std::vector<ValueId> in{c.input(0), c.input(1)};
  for (std::size_t i = 2; i < 5; ++i) in.push_back(optional_input(c, i));
  c.outputs[0] =
      c.emit(Op::kNonMaxSuppression, in, {{key::kCenterPointBox, c.attr_int("center_point_box", 0)}});
}

void roi_align(OpContext& c) {
  c.outputs[0] = c.emit(Op::kRoiAlign, {c.input(0), c.input(1), c.input(2)},
                        {{key::kMode, c.attr_word("mode", {"avg", "max"})},
                         {key::kCoordinateTransformationMode,
                          c.attr_word("coordinate_transformation_mode", {"half_pixel", "output_half_pixel"},
                                      c.opset >= 16 ? "half_pixel" : "output_half_pixel")},
                         {key::kOutputShape, {c.attr_int("output_height", 1), c.attr_int("output_width", 1)}},
                         {key::kSamplingRatio, c.attr_int("sampling_ratio", 0)},
                         {key::kScale, c.attr_float("spatial_scale", 1)}});
}

void max_roi_pool(OpContext& c) {
  c.outputs[0] = c.emit(
      Op::kMaxRoiPool, {c.input(0), c.input(1)},
      {{key::kOutputShape, c.attr_ints("pooled_shape")}, {key::kScale, c.attr_float("spatial_scale", 1)}});
}

void grid_sample(OpContext& c) {
  std::string mode = c.attr_word("mode", {"linear", "bilinear", "nearest", "cubic", "bicubic"});
  if (mode.starts_with("bi")) mode.erase(0, 2);  // before opset 20
  c.outputs[0] = c.emit(Op::kGridSample, {c.input(0), c.input(1)},
                        {{key::kMode, mode},
                         {key::kPaddingMode, c.attr_word("padding_mode", {"zeros", "border", "reflection"})},
                         {key::kAlignCorners, c.attr_int("align_corners", 0)}});
}

// The coordinate of each point of one axis, from -1 to 1: of the outermost points, or of the edges.
ValueId coordinates(OpContext& c, ValueId count, bool align_corners, DType type) {
  const auto number = [&](double value) { return scalar(c, value, DType::kI64); };
  const ValueId points = c.emit(Op::kRange, {number(0), count, number(1)});
  const auto real = [&](ValueId x) { return cast(c, x, type); };
  if (align_corners) {
    const ValueId last = binary(c, Op::kMax, binary(c, Op::kSub, count, number(1)), number(1));
    return binary(c, Op::kSub,
                  binary(c, Op::kDiv, binary(c, Op::kMul, real(points), scalar(c, 2, type)), real(last)),
                  scalar(c, 1, type));
  }
  const ValueId odd = binary(c, Op::kAdd, binary(c, Op::kMul, points, number(2)), number(1));
  return binary(c, Op::kSub, binary(c, Op::kDiv, real(odd), real(count)), scalar(c, 1, type));
}

// (theta [N, d, d + 1], size [N, C, ...]) -> [N, ..., d]: theta times (x, y, ..., 1) of each point.
void affine_grid(OpContext& c) {
  const Shape theta = shape_of(c, c.input(0));
  const int64_t sizes = constant_dim(c, c.input(1), 0, "the size");
  if (theta.size() != 3 || (sizes != 4 && sizes != 5)) c.fail("needs theta of rank 3 and 4 or 5 sizes");
  const auto spatial = static_cast<std::size_t>(sizes) - 2;
  c.require_equal(theta[1], Expr(sizes - 2), "axis 1 of theta");
  c.require_equal(theta[2], Expr(sizes - 1), "axis 2 of theta");
  const auto known_sizes = known(c, 1);
  if (known_sizes) c.require_equal(theta[0], (*known_sizes)[0], "axis 0 of theta");
  const DType type = dtype_of(c, c.input(0));
  std::vector<ValueId> axes;
  Shape points;
  for (std::size_t a = 0; a < spatial; ++a) {
    const auto place = static_cast<int64_t>(2 + a);
    const ValueId count =
        known_sizes ? c.emit(Op::kDims, {}, {{key::kValues, Shape{(*known_sizes)[2 + a]}}, {key::kScalar, 1}})
                    : c.emit(Op::kGather, {c.input(1), scalar(c, static_cast<double>(place), DType::kI64)},
                             {{key::kAxis, 0}});
    axes.push_back(coordinates(c, count, c.attr_int("align_corners", 0) != 0, type));
    points.push_back(shape_of(c, axes.back())[0]);
  }
  points.emplace_back(1);
  std::vector<ValueId> columns;  // x first: the last axis
  for (std::size_t a = spatial; a-- > 0;) {
    Shape along(spatial + 1, Expr(1));
    along[a] = points[a];
    columns.push_back(c.emit(Op::kExpand, {reshape(c, axes[a], along)}, {{key::kShape, points}}));
  }
  columns.push_back(c.emit(Op::kExpand, {scalar(c, 1, type)}, {{key::kShape, points}}));
  const ValueId base = c.emit(Op::kConcat, columns, {{key::kAxis, static_cast<int64_t>(spatial)}});
  points.pop_back();
  const ValueId flat = reshape(c, base, {element_count(points), Expr(sizes - 1)});
  const ValueId grid = c.emit(Op::kMatMul, {flat, c.input(0)}, {{key::kTransB, 1}});
  Shape result{theta[0]};
  result.insert(result.end(), points.begin(), points.end());
  result.emplace_back(sizes - 2);
  c.outputs[0] = reshape(c, grid, result);
}

void deform_conv(OpContext& c) {
  if (c.rank(0) < 3 || c.rank(1) != c.rank(0))
    c.fail("input and weight must have the same rank of 3 or more");
  const auto spatial = static_cast<std::size_t>(c.rank(0)) - 2;
  std::vector<int64_t> kernel = c.attr_ints("kernel_shape");
  for (std::size_t i = 0; i < spatial && kernel.size() < spatial; ++i)
    kernel.push_back(constant_dim(c, c.input(1), 2 + i, "the kernel"));
  std::vector<ValueId> in{c.input(0), c.input(1), c.input(2), optional_input(c, 3), optional_input(c, 4)};
  c.outputs[0] = c.emit(Op::kDeformConv, in,
                        {{key::kGroup, c.attr_int("group", 1)},
                         {key::kOffsetGroup, c.attr_int("offset_group", 1)},
                         {key::kKernelShape, kernel},
                         {key::kStrides, ints_or(c, "strides", spatial, 1)},
                         {key::kDilations, ints_or(c, "dilations", spatial, 1)},
                         {key::kPads, ints_or(c, "pads", 2 * spatial, 0)}});
}

void max_unpool(OpContext& c) {
  const std::vector<int64_t> kernel = c.attr_ints("kernel_shape");
  Attributes attributes{{key::kKernelShape, kernel},
                        {key::kStrides, ints_or(c, "strides", kernel.size(), 1)},
                        {key::kPads, ints_or(c, "pads", 2 * kernel.size(), 0)}};
  std::vector<ValueId> in{c.input(0), c.input(1)};
  if (const auto sizes = known(c, 2))
    attributes.set(key::kShape, *sizes);
  else if (c.has_input(2))
    in.push_back(c.inputs[2]);
  c.outputs[0] = c.emit(Op::kMaxUnpool, in, attributes);
}

void col2im(OpContext& c) {
  const auto image = known(c, 1);
  const auto block = known_ints(c, 2);
  const auto spatial = static_cast<std::size_t>(constant_dim(c, c.input(1), 0, "the image_shape"));
  Attributes attributes{{key::kStrides, ints_or(c, "strides", spatial, 1)},
                        {key::kDilations, ints_or(c, "dilations", spatial, 1)},
                        {key::kPads, ints_or(c, "pads", 2 * spatial, 0)}};
  if (image) attributes.set(key::kShape, *image);
  if (block) attributes.set(key::kKernelShape, *block);
  std::vector<ValueId> in{c.input(0), image ? kNoValue : c.input(1), block ? kNoValue : c.input(2)};
  c.outputs[0] = c.emit(Op::kCol2Im, in, attributes);
}

}  // namespace

std::span<const Entry> vision_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "NonMaxSuppression", non_max_suppression},
      {kOnnx, "RoiAlign", roi_align},
      {kOnnx, "MaxRoiPool", max_roi_pool},
      {kOnnx, "GridSample", grid_sample},
      {kMicrosoft, "GridSample", grid_sample},
      {kOnnx, "AffineGrid", affine_grid},
      {kOnnx, "DeformConv", deform_conv},
      {kOnnx, "MaxUnpool", max_unpool},
      {kOnnx, "Col2Im", col2im},
  };
  return kTable;
}

}  // namespace ark::ops
