// Convolution, pooling and resizing.
#include <algorithm>

#include "base/ir/keys.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

std::vector<int64_t> ints_or_ones(OpContext& c, const char* name, std::size_t n) {
  auto values = c.attr_ints(name);
  if (values.empty()) values.assign(n, 1);
  if (values.size() != n)
    c.fail(std::string(name) + " has " + std::to_string(values.size()) + " entries for " + std::to_string(n) +
           " spatial axes");
  return values;
}

std::string auto_pad(OpContext& c) {
  const std::string mode = c.attr_word("auto_pad", {"NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"});
  return mode.empty() ? "NOTSET" : mode;
}

// What a kernel covers. Throws Error(kBadModel) where that is no number of 64 bits.
Expr reach(const Expr& kernel, int64_t dilation) { return (kernel - 1) * Expr(dilation) + 1; }

// SAME pads so that the output has ceil(in / stride): numbers where the sizes of input and kernel are.
void resolve_auto_pad(OpContext& c, Attributes& attributes, const Shape& kernel) {
  const std::size_t n = kernel.size();
  const std::string mode = auto_pad(c);
  std::vector<int64_t> pads = c.attr_ints("pads");
  if (pads.empty()) pads.assign(2 * n, 0);
  if (pads.size() != 2 * n)
    c.fail("pads has " + std::to_string(pads.size()) + " entries for " + std::to_string(n) + " spatial axes");
  if (mode == "VALID") std::fill(pads.begin(), pads.end(), 0);
  attributes.set(key::kPads, pads);
  if (mode == "NOTSET" || mode == "VALID") return;
  const Shape& x = shape_of(c, c.input(0));
  const auto &strides = attributes.get(key::kStrides), &dilations = attributes.get(key::kDilations);
  for (std::size_t i = 0; i < n; ++i) {
    const auto in = x[2 + i].constant();
    if (!in || !kernel[i].constant() || strides[i] <= 0) {
      attributes.set(key::kAutoPad, mode);
      return;
    }
    // In checked arithmetic: the file's numbers may be any.
    const Expr out = ceildiv(Expr(*in), Expr(strides[i]));
    const int64_t total =
        *max(Expr(0), (out - 1) * Expr(strides[i]) + reach(kernel[i], dilations[i]) - *in).constant();
    pads[i] = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
    pads[i + n] = total - pads[i];
  }
  attributes.set(key::kPads, pads);
}

std::size_t spatial_axes(OpContext& c) {
  if (c.rank(0) < 3) c.fail("needs an input of rank 3 or more ([N, C, ...])");
  return static_cast<std::size_t>(c.rank(0)) - 2;
}

Attributes conv_attributes(OpContext& c) {
  const std::size_t n = spatial_axes(c);
  if (auto_pad(c) != "NOTSET" && !c.attr_ints("pads").empty()) c.fail("has both auto_pad and pads");
  Attributes attributes{{key::kGroup, c.attr_int("group", 1)},
                        {key::kStrides, ints_or_ones(c, "strides", n)},
                        {key::kDilations, ints_or_ones(c, "dilations", n)}};
  return attributes;
}

// Of weights that are an input, or computed, the sizes may be known to the run alone.
Shape kernel_of(OpContext& c, ValueId weight) {
  const std::size_t n = spatial_axes(c);
  const auto given = c.attr_ints("kernel_shape");
  const Shape& have = shape_of(c, weight);
  if ((!given.empty() && given.size() != n) || std::ssize(have) != c.rank(0))
    c.fail("kernel_shape or the weight does not fit the rank of the input");
  Shape kernel(have.begin() + 2, have.end());
  for (std::size_t i = 0; i < given.size(); ++i) {
    c.require_equal(kernel[i], Expr(given[i]),
                    "axis " + std::to_string(2 + i) + " of the weight, by kernel_shape,");
    kernel[i] = given[i];
  }
  return kernel;
}

ValueId emit_conv(OpContext& c, Op op, std::vector<ValueId> in) {
  Attributes attributes = conv_attributes(c);
  resolve_auto_pad(c, attributes, kernel_of(c, in[1]));
  return c.emit(op, std::move(in), attributes);
}

void conv(OpContext& c) {
  std::vector<ValueId> in{c.input(0), c.input(1)};
  if (c.has_input(2)) in.push_back(c.inputs[2]);
  c.outputs[0] = emit_conv(c, Op::kConv, in);
}

void conv_integer(OpContext& c) {
  std::vector<ValueId> in{c.input(0), c.input(1)};
  for (std::size_t i = 2; i < 4; ++i) in.push_back(c.has_input(i) ? c.inputs[i] : kNoValue);
  c.outputs[0] = emit_conv(c, Op::kConvInteger, in);
}

// (x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias i32 of scale x_scale * w_scale?)
void qlinear_conv(OpContext& c) {
  std::vector<ValueId> in{dequantized(c, 0, 1, 2, 1), dequantized(c, 3, 4, 5, 0)};
  if (c.has_input(8)) {
    const ValueId scale = binary(c, Op::kMul, c.input(1), c.input(4));
    in.push_back(binary(c, Op::kMul, cast(c, c.inputs[8], DType::kF32), scale));
  }
  c.outputs[0] = quantized(c, emit_conv(c, Op::kConv, in), 6, 7);
}

// com.microsoft: a convolution and the activation behind it.
void fused_conv(OpContext& c) {
  conv(c);
  if (c.has_input(3)) c.outputs[0] = binary(c, Op::kAdd, c.outputs[0], c.inputs[3]);
  const std::string activation = c.attr_string("activation", "");
  const auto parameters = c.attr_floats("activation_params");
  const auto parameter = [&](const std::string&, std::size_t i) {
    return i < parameters.size() ? std::optional(parameters[i]) : std::nullopt;
  };
  const ValueId x = c.outputs[0];
  if (activation == "Clip")
    c.outputs[0] = c.emit(Op::kClip, {x, scalar(c, parameter("min", 0).value_or(-3.4e38f), DType::kF32),
                                      scalar(c, parameter("max", 1).value_or(3.4e38f), DType::kF32)});
  else if (!activation.empty())
    c.outputs[0] = activated(c, x, activation, parameter);
}

// (x [B, C, L], weight [C, 1, k], bias?, past?) -> (y, present): each channel's convolution with the places before
// it, of which the caller keeps the last (k - 1) * dilation. com.microsoft: {channels_last, dilation} as well.
void causal_conv(OpContext& c) {
  if (c.attr_int("ndim", 1) != 1 || c.attr_int("state_window", 0) != 0)
    c.unsupported("ndim other than 1, or a state_window");
  const bool last = c.attr_int("channels_last", 0) != 0;
  const auto turned = [&](std::size_t i) { return last ? turn_channels(c, c.input(i), false) : c.input(i); };
  const ValueId x = turned(0);
  if (rank_of(c, x) != 3 || rank_of(c, c.input(1)) != 3) c.fail("the input and the weight must have rank 3");
  const int64_t dilation = c.attr_int("dilation", 1), channels = constant_dim(c, c.input(1), 0, "the weight");
  const Shape shape = shape_of(c, x);
  const Shape kept{shape[0], channels, reach(constant_dim(c, c.input(1), 2, "the weight"), dilation) - 1};
  const ValueId past = c.has_input(3)
                           ? turned(3)
                           : c.emit(Op::kConstantOfShape, {},
                                    {{key::kShape, kept}, {key::kValue, Tensor::zeros(dtype_of(c, x), {1})}});
  if (rank_of(c, past) != 3) c.fail("the past must have rank 3");
  c.require_equal(shape_of(c, past)[2], kept[2], "the past's length");
  const ValueId all = c.emit(Op::kConcat, {past, x}, {{key::kAxis, 2}});
  std::vector<ValueId> in{all, c.input(1)};
  if (c.has_input(2)) in.push_back(c.inputs[2]);
  ValueId y = c.emit(Op::kConv, in,
                     {{key::kGroup, channels},
                      {key::kStrides, std::vector<int64_t>{1}},
                      {key::kDilations, std::vector<int64_t>{dilation}},
                      {key::kPads, std::vector<int64_t>{0, 0}}});
  if (c.attr_word("activation", {"none", "silu", "swish"}) != "none")
    y = binary(c, Op::kMul, y, c.emit(Op::kSigmoid, {y}));
  const ValueId present = slice_axis(c, all, 2, shape[2], shape[2] + kept[2]);
  c.outputs[0] = last ? turn_channels(c, y, true) : y;
  c.outputs[1] = last ? turn_channels(c, present, true) : present;
}

void conv_transpose(OpContext& c) {
  Attributes attributes = conv_attributes(c);
  const std::size_t n = spatial_axes(c);
  auto extra = c.attr_ints("output_padding");
  if (extra.empty()) extra.assign(n, 0);
  const auto kernel = kernel_of(c, c.input(1));
  std::vector<int64_t> pads = c.attr_ints("pads"), shape = c.attr_ints("output_shape");
  if (pads.empty()) pads.assign(2 * n, 0);
  if (pads.size() != 2 * n || extra.size() != n || kernel.size() != n || (!shape.empty() && shape.size() < n))
    c.fail("pads, output_padding, kernel or output_shape of the wrong length");
  for (std::size_t i = 0; i < n; ++i)
    if (extra[i] < 0 ||
        extra[i] >= std::max(attributes.get(key::kStrides)[i], attributes.get(key::kDilations)[i]))
      c.fail("output_padding must be less than the stride or the dilation");
  if (shape.size() > n) shape.erase(shape.begin(), shape.end() - static_cast<std::ptrdiff_t>(n));
  for (const int64_t size : shape)
    if (size < 0) c.fail("output_shape has a size of " + std::to_string(size));
  const std::string mode = auto_pad(c);
  const bool same = mode == "SAME_UPPER" || mode == "SAME_LOWER";
  const auto &strides = attributes.get(key::kStrides), &dilations = attributes.get(key::kDilations);
  // The padding that gives the output size asked for: at run time, where a size is known to the run alone.
  for (std::size_t i = 0; i < n && (same || !shape.empty()); ++i) {
    const Expr covered = Expr(extra[i]) + reach(kernel[i], dilations[i]);
    Expr wanted = covered - strides[i];  // SAME: out = in * stride, whatever in is
    if (!shape.empty()) wanted = Expr(strides[i]) * (shape_of(c, c.input(0))[2 + i] - 1) + covered - shape[i];
    if (!wanted.constant()) {
      if (same) attributes.set(key::kAutoPad, mode);
      if (!shape.empty()) attributes.set(key::kOutputShape, shape);
      break;
    }
    int64_t total = *wanted.constant();
    // Zeros behind what the kernel reaches.
    extra[i] = *(Expr(extra[i]) + max(Expr(0) - wanted, Expr(0))).constant();
    total = std::max<int64_t>(total, 0);
    pads[i] = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
    pads[i + n] = total - pads[i];
  }
  attributes.set(key::kPads, pads);
  attributes.set(key::kOutputPadding, extra);
  std::vector<ValueId> in{c.input(0), c.input(1)};
  if (c.has_input(2)) in.push_back(c.inputs[2]);
  c.outputs[0] = c.emit(Op::kConvTranspose, in, attributes);
}

Attributes pool_attributes(OpContext& c) {
  const std::size_t n = spatial_axes(c);
  const auto kernel = c.attr_ints("kernel_shape");
  if (kernel.size() != n) c.fail("kernel_shape does not fit the rank of the input");
  const auto pads = c.attr_ints("pads");
  for (std::size_t i = 0; i < pads.size(); ++i)
    if (pads[i] >= kernel[i % n])
      c.fail("pads must be less than the kernel: a window would see padding alone");
  Attributes attributes{{key::kKernelShape, kernel},
                        {key::kStrides, ints_or_ones(c, "strides", n)},
                        {key::kDilations, ints_or_ones(c, "dilations", n)},
                        {key::kCeilMode, c.attr_int("ceil_mode", 0)}};
  resolve_auto_pad(c, attributes, Shape(kernel.begin(), kernel.end()));
  return attributes;
}

// Places in a tensor [N, C, ...], counted along its last axis first, as those of planes whose first axis is counted
// first.
ValueId by_columns(OpContext& c, ValueId places, Shape shape) {
  const auto size = [&](const Expr& e) {
    return c.emit(Op::kDims, {}, {{key::kValues, Shape{e}}, {key::kScalar, 1}});
  };
  ValueId rest = binary(c, Op::kMod, places, size(element_count({shape.begin() + 2, shape.end()})));
  ValueId result = binary(c, Op::kSub, places, rest);
  for (std::size_t a = shape.size(); a-- > 2;) {
    const ValueId index = binary(c, Op::kMod, rest, size(shape[a]));
    rest = binary(c, Op::kDiv, rest, size(shape[a]));
    const ValueId step =
        size(element_count({shape.begin() + 2, shape.begin() + static_cast<std::ptrdiff_t>(a)}));
    result = binary(c, Op::kAdd, result, binary(c, Op::kMul, index, step));
  }
  return result;
}

void max_pool(OpContext& c) {
  const bool turned = c.attr_flag("storage_order") && c.wants_output(1);
  const auto results = c.emit_many(Op::kMaxPool, {c.input(0)}, pool_attributes(c), c.wants_output(1) ? 2 : 1);
  for (std::size_t i = 0; i < results.size(); ++i) c.outputs[i] = results[i];
  if (turned) c.outputs[1] = by_columns(c, results[1], shape_of(c, c.input(0)));
}

void average_pool(OpContext& c) {
  Attributes attributes = pool_attributes(c);
  attributes.set(key::kCountIncludePad, c.attr_int("count_include_pad", 0));
  c.outputs[0] = c.emit(Op::kAveragePool, {c.input(0)}, attributes);
}

// The p-norm of each window, by way of average pooling: mean * count is the sum, if padding counts as zeros.
void lp_pool(OpContext& c) {
  const double p = static_cast<double>(c.attr_int("p", 2));
  Attributes attributes = pool_attributes(c);
  if (attributes.get(key::kCeilMode)) c.unsupported("LpPool with ceil_mode");
  attributes.set(key::kCountIncludePad, 1);
  double count = 1;
  for (const int64_t k : attributes.get(key::kKernelShape)) count *= static_cast<double>(k);
  const ValueId x = c.input(0);
  const DType type = dtype_of(c, x);
  const ValueId powers = binary(c, Op::kPow, c.emit(Op::kAbs, {x}), scalar(c, p, type));
  const ValueId sums =
      binary(c, Op::kMul, c.emit(Op::kAveragePool, {powers}, attributes), scalar(c, count, type));
  c.outputs[0] = binary(c, Op::kPow, sums, scalar(c, 1 / p, type));
}

void global_lp_pool(OpContext& c) {
  const double p = static_cast<double>(c.attr_int("p", 2));
  const ValueId x = c.input(0);
  const DType type = dtype_of(c, x);
  std::vector<int64_t> axes;
  for (int64_t i = 2; i < c.rank(0); ++i) axes.push_back(i);
  const ValueId powers = binary(c, Op::kPow, c.emit(Op::kAbs, {x}), scalar(c, p, type));
  const ValueId sums = c.emit(Op::kReduceSum, {powers}, {{key::kAxes, axes}, {key::kKeepdims, 1}});
  c.outputs[0] = binary(c, Op::kPow, sums, scalar(c, 1 / p, type));
}

template <Op op>
void global_pool(OpContext& c) {
  c.outputs[0] = c.emit(op, {c.input(0)});
}

const std::initializer_list<std::string_view> kModes{"nearest", "linear", "cubic"};

// (x, roi?, scales?, sizes?) since opset 11; (x, scales) at 10.
void resize(OpContext& c) {
  const bool now = c.opset >= 11;
  Attributes attributes{
      {key::kMode, c.attr_word("mode", kModes)},
      {key::kCoordinateTransformationMode,
       c.attr_word("coordinate_transformation_mode",
                   {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
                    "tf_half_pixel_for_nn", "tf_crop_and_resize"},
                   now ? "half_pixel" : "asymmetric")},
      {key::kNearestMode,
       c.attr_word("nearest_mode", {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"},
                   now ? "round_prefer_floor" : "floor")},
      {key::kCubicCoeffA, c.attr_float("cubic_coeff_a", -0.75)},
      {key::kExcludeOutside, c.attr_int("exclude_outside", 0)},
      {key::kAntialias, c.attr_int("antialias", 0)},
      {key::kExtrapolationValue, c.attr_float("extrapolation_value", 0)},
      {key::kKeepAspectRatioPolicy,
       c.attr_word("keep_aspect_ratio_policy", {"stretch", "not_larger", "not_smaller"})}};
  if (c.has_attr("axes")) {
    auto axes = c.attr_ints("axes");
    for (int64_t& a : axes) a = c.axis(a, c.rank(0));
    attributes.set(key::kAxes, axes);
  }
  const std::size_t scales = c.opset >= 11 ? 2 : 1;
  ValueId scale = c.has_input(scales) ? c.inputs[scales] : kNoValue;
  const auto& scale_shape = scale == kNoValue ? std::optional<Shape>() : value_of(c, scale).shape;
  if (scale_shape && element_count(*scale_shape).is_constant(0)) scale = kNoValue;  // empty: the sizes count
  if (scale_shape && scale != kNoValue && c.has_input(3)) c.fail("has scales and sizes; one of them must go");
  std::vector<ValueId> in{c.input(0), scale, kNoValue};
  if (scale == kNoValue) {
    if (!c.has_input(3) || c.opset < 11) c.fail("Resize needs scales or sizes");
    if (const auto sizes = known(c, 3))
      attributes.set(key::kSizes, *sizes);
    else
      in[2] = c.inputs[3];
  }
  if (attributes.get(key::kCoordinateTransformationMode) == "tf_crop_and_resize") in.push_back(c.input(1));
  c.outputs[0] = c.emit(Op::kResize, in, attributes);
}

void upsample(OpContext& c) {
  Attributes attributes{{key::kMode, c.attr_word("mode", kModes)},
                        {key::kCoordinateTransformationMode, "asymmetric"},
                        {key::kNearestMode, "floor"}};
  ValueId scale = kNoValue;
  if (c.has_input(1)) {
    scale = c.input(1);
  } else {
    const auto scales = c.attr_floats("scales");
    const std::vector<float> narrow(scales.begin(), scales.end());
    scale = c.graph.add_constant(
        make_constant(Tensor::of<float>(DType::kF32, {static_cast<int64_t>(narrow.size())}, narrow)));
  }
  c.outputs[0] = c.emit(Op::kResize, {c.input(0), scale}, attributes);
}

}  // namespace

std::span<const Entry> window_table() {
  static constexpr Entry kTable[] = {
      {kOnnx, "Conv", conv},
      {kMicrosoft, "FusedConv", fused_conv},
      {kOnnx, "CausalConvWithState", causal_conv},
      {kMicrosoft, "CausalConvWithState", causal_conv},
      {kOnnx, "ConvInteger", conv_integer},
      {kOnnx, "QLinearConv", qlinear_conv},
      {kOnnx, "ConvTranspose", conv_transpose},
      {kOnnx, "MaxPool", max_pool},
      {kOnnx, "AveragePool", average_pool},
      {kOnnx, "LpPool", lp_pool},
      {kOnnx, "GlobalAveragePool", global_pool<Op::kGlobalAveragePool>},
      {kOnnx, "GlobalMaxPool", global_pool<Op::kGlobalMaxPool>},
      {kOnnx, "GlobalLpPool", global_lp_pool},
      {kOnnx, "Resize", resize},
      {kOnnx, "Upsample", upsample},
  };
  return kTable;
}

}  // namespace ark::ops
