// Convolution, pooling and resizing over the spatial axes (2..rank-1 of [N, C, ...]).
#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

struct Window {
  std::vector<int64_t> strides, dilations, pads;
  std::string auto_pad;

  Window(Context& c, std::size_t spatial)
      : strides(c.attributes().get_or(key::kStrides, std::vector<int64_t>(spatial, 1))),
        dilations(c.attributes().get_or(key::kDilations, std::vector<int64_t>(spatial, 1))),
        pads(c.attributes().get_or(key::kPads, std::vector<int64_t>(2 * spatial, 0))),
        auto_pad(c.attributes().get_or(key::kAutoPad, "NOTSET")) {
    if (strides.size() != spatial || dilations.size() != spatial || pads.size() != 2 * spatial)
      c.fail("strides, dilations or pads do not fit " + std::to_string(spatial) + " spatial axes");
    for (const int64_t s : strides)
      if (s <= 0) c.fail("strides must be positive");
    for (const int64_t d : dilations)
      if (d <= 0) c.fail("dilations must be positive");
    for (const int64_t p : pads)
      if (p < 0) c.fail("pads must not be negative");
  }
};

Expr positive(const Expr& e) {
  const auto low = e.lower_bound();
  return low && *low >= 0 ? e : max(e, Expr(0));
}

Expr slid(const Window& w, std::size_t i, std::size_t spatial, const Expr& in, const Expr& kernel,
          bool ceil) {
  const Expr stride = w.strides[i], reach = (kernel - 1) * Expr(w.dilations[i]) + 1;
  if (w.auto_pad == "SAME_UPPER" || w.auto_pad == "SAME_LOWER") return ceildiv(in, stride);
  const Expr before = w.auto_pad == "VALID" ? 0 : w.pads[i],
             after = w.auto_pad == "VALID" ? 0 : w.pads[i + spatial];
  const Expr span = in + before + after - reach;
  if (!ceil) return positive(floordiv(span, stride) + 1);
  // A last window that begins in the padding behind the input does not count.
  const Expr count = ceildiv(span, stride) + 1;
  const Expr start = (count - 1) * stride;
  const auto excess = (start - in - before).lower_bound();
  const auto shortage = (start - in - before).upper_bound();
  if (excess && *excess >= 0) return positive(count - 1);
  if (shortage && *shortage < 0) return positive(count);
  return positive(min(count, floordiv(in + before - 1, stride) + 1));
}

// ConvInteger: one zero point for the input, one or one an output channel for the weights, as far as sizes are known.
void check_zeros(Context& c) {
  for (std::size_t i = 2; i < 4; ++i) {
    const auto zeros = c.count(i);
    if (!zeros || *zeros == 1) continue;
    const auto channels =
        c.shape(1) && !c.shape(1)->empty() ? c.shape(1)->front().constant() : std::optional<int64_t>();
    if (i == 2 || (channels && *channels != *zeros))
      c.fail("has " + std::to_string(*zeros) + " zero points for its " + (i == 2 ? "input" : "weights"));
  }
}

// One bias a channel of the output.
void check_bias(Context& c, const Expr& channels) {
  if (c.node().op == Op::kConvInteger || !c.has(2) || !c.shape(2)) return;
  if (c.shape(2)->size() != 1) c.fail("its bias must have rank 1");
  c.same(c.shape(2)->front(), channels, "the bias and the output's channels");
}

void conv(Context& c) {
  const DType type = c.node().op == Op::kConvInteger ? DType::kI32 : c.dtype(0);
  if (c.node().op == Op::kConvInteger) check_zeros(c);
  if (!c.shape(0) || !c.shape(1)) return c.out(0, type, std::nullopt);
  c.check_rank(0, 2);
  const Shape &x = *c.shape(0), &weight = *c.shape(1);
  if (weight.size() != x.size()) c.fail("input and weight of different ranks");
  const std::size_t spatial = x.size() - 2;
  const Window w(c, spatial);
  const int64_t group = c.attributes().get_or(key::kGroup, 1);
  if (group <= 0 || weight[0].constant().value_or(0) % group)
    c.fail("group must be positive and divide the channels");
  check_bias(c, weight[0]);
  c.same(x[1], weight[1] * Expr(group), "channels of the input and group * channels of the weight");
  Shape y{x[0], weight[0]};
  for (std::size_t i = 0; i < spatial; ++i) y.push_back(slid(w, i, spatial, x[2 + i], weight[2 + i], false));
  c.out(0, type, y);
}

void conv_transpose(Context& c) {
  if (!c.shape(0) || !c.shape(1)) return c.out(0, c.dtype(0), std::nullopt);
  c.check_rank(0, 2);
  const Shape &x = *c.shape(0), &weight = *c.shape(1);
  if (weight.size() != x.size()) c.fail("input and weight of different ranks");
  const std::size_t spatial = x.size() - 2;
  const Window w(c, spatial);
  c.same(x[1], weight[0], "channels of the input and of the weight");
  const int64_t group = c.attributes().get_or(key::kGroup, 1);
  if (group <= 0 || weight[0].constant().value_or(0) % group)
    c.fail("group must be positive and divide the channels");
  Shape y{x[0], weight[1] * Expr(group)};
  check_bias(c, y[1]);
  const auto given = c.attributes().get_or(key::kOutputShape, {});
  const auto extra = c.attributes().get_or(key::kOutputPadding, std::vector<int64_t>(spatial, 0));
  if (extra.size() != spatial || (!given.empty() && given.size() < spatial))
    c.fail("output_padding or output_shape of the wrong length");
  for (std::size_t i = 0; i < spatial; ++i) {
    const Expr stride = w.strides[i];
    if (!given.empty())
      y.emplace_back(given[given.size() - spatial + i]);
    else if (w.auto_pad == "SAME_UPPER" || w.auto_pad == "SAME_LOWER")
      y.push_back(x[2 + i] * stride);
    else
      y.push_back((x[2 + i] - 1) * stride + Expr(extra[i]) + (weight[2 + i] - 1) * Expr(w.dilations[i]) + 1 -
                  Expr(w.pads[i]) - Expr(w.pads[i + spatial]));
  }
  c.out(0, c.dtype(0), y);
}

void pool(Context& c) {
  std::optional<Shape> y;
  if (c.shape(0)) {
    c.check_rank(0, 2);
    const Shape& x = *c.shape(0);
    const std::size_t spatial = x.size() - 2;
    const Window w(c, spatial);
    const auto& kernel = c.attributes().get(key::kKernelShape);
    if (kernel.size() != spatial) c.fail("kernel_shape does not fit the rank of the input");
    for (const int64_t k : kernel)
      if (k <= 0) c.fail("kernel_shape must be positive");
    y = Shape{x[0], x[1]};
    for (std::size_t i = 0; i < spatial; ++i)
      y->push_back(
          slid(w, i, spatial, x[2 + i], Expr(kernel[i]), c.attributes().get_or(key::kCeilMode, 0) != 0));
  }
  c.out(0, c.dtype(0), y);
  c.out(1, DType::kI64, y);
}

void global_pool(Context& c) {
  c.check_rank(0, 2);
  std::optional<Shape> y = c.shape(0);
  if (y)
    for (std::size_t i = 2; i < y->size(); ++i) (*y)[i] = 1;
  c.out(0, c.dtype(0), y);
}

// (x, scales?, sizes?, roi?) {axes: ints}: one of scales and sizes is given, for the axes named.
void resize(Context& c) {
  if (!c.shape(0)) return c.out(0, c.dtype(0), std::nullopt);
  Shape y = *c.shape(0);
  std::vector<int64_t> axes = c.attributes().get_or(key::kAxes, {});
  if (axes.empty())
    for (int64_t i = 0; i < *c.rank(0); ++i) axes.push_back(i);
  const auto scales = c.constant(1);
  std::optional<Elements> sizes;
  if (c.attributes().has(key::kSizes)) sizes = c.attributes().get(key::kSizes);
  if ((scales && scales->size() != static_cast<int64_t>(axes.size())) ||
      (sizes && sizes->size() != axes.size()))
    c.fail("Resize needs one scale or size an axis");
  const bool uniform = c.attributes().get_or(key::kKeepAspectRatioPolicy, "stretch") == "stretch";
  for (std::size_t k = 0; k < axes.size(); ++k) {
    const auto axis = static_cast<std::size_t>(c.axis(axes[k], *c.rank(0)));
    const auto in = y[axis].constant();
    const double scale = scales ? scales->real(static_cast<int64_t>(k)) : 1;
    if (!(scale > 0) || scale > 1e6) c.fail("Resize by a scale that is not in (0, 1e6]");
    if (sizes && uniform)
      y[axis] = (*sizes)[k];
    else if (scales && scale == 1)
      continue;
    else if (scales && in)
      y[axis] = Expr(static_cast<int64_t>(static_cast<float>(*in) * static_cast<float>(scale)));
    else if (scales && scale == static_cast<double>(static_cast<int64_t>(scale)))
      y[axis] = y[axis] * Expr(static_cast<int64_t>(scale));
    else
      y[axis] = c.fresh(0, axis, "d" + std::to_string(axis));
  }
  c.out(0, c.dtype(0), y);
}

}  // namespace

std::span<const Entry> window_rules() {
  static constexpr Entry kRules[] = {
      {Op::kConv, conv},
      {Op::kConvInteger, conv},
      {Op::kConvTranspose, conv_transpose},
      {Op::kMaxPool, pool},
      {Op::kAveragePool, pool},
      {Op::kGlobalAveragePool, global_pool},
      {Op::kGlobalMaxPool, global_pool},
      {Op::kResize, resize},
  };
  return kRules;
}

}  // namespace ark::shape_rules
