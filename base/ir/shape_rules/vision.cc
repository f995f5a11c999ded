// Operators on images and boxes.
#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

void expect_rank(Context& c, std::size_t i, int64_t rank) {
  if (const auto r = c.rank(i); r && *r != rank)
    c.fail("input " + std::to_string(i) + " has rank " + std::to_string(*r) + ", not " +
           std::to_string(rank));
}

void expect_floats(Context& c, std::initializer_list<std::size_t> inputs) {
  for (const std::size_t i : inputs)
    if (c.has(i) && c.dtype(i) != DType::kUndefined && !is_floating(c.dtype(i)))
      c.fail("input " + std::to_string(i) + " is of type " + std::string(name_of(c.dtype(i))) +
             ", not of floating point");
}

const std::vector<int64_t>& positive_ints(Context& c, Key<std::vector<int64_t>> key, std::size_t count) {
  const auto& values = c.attributes().get(key);
  if (values.size() != count)
    c.fail(std::string(key.name) + " has " + std::to_string(values.size()) + " entries, not " +
           std::to_string(count));
  for (const int64_t v : values)
    if (v < 1 || v > INT32_MAX) c.fail(std::string(key.name) + " has " + std::to_string(v));
  return values;
}

const std::vector<int64_t>& pads_of(Context& c, std::size_t spatial) {
  const auto& pads = c.attributes().get(key::kPads);
  if (pads.size() != 2 * spatial)
    c.fail("pads has " + std::to_string(pads.size()) + " entries for " + std::to_string(spatial) +
           " spatial axes");
  for (const int64_t p : pads)
    if (p < 0 || p > INT32_MAX) c.fail("pads has " + std::to_string(p));
  return pads;
}

// How many windows fit along an axis.
Expr windows(const Expr& size, int64_t kernel, int64_t stride, int64_t dilation, int64_t pads) {
  return floordiv(size + Expr(pads - dilation * (kernel - 1) - 1), Expr(stride)) + 1;
}

void grid_sample(Context& c) {
  expect_floats(c, {0, 1});
  if (!c.shape(0) || !c.shape(1)) return c.out(0, c.dtype(0), std::nullopt);
  const Shape &x = *c.shape(0), &grid = *c.shape(1);
  if (x.size() < 3 || grid.size() != x.size()) c.fail("input and grid must have the same rank of 3 or more");
  c.same(x[0], grid[0], "images and grids");
  c.same(grid.back(), Expr(static_cast<int64_t>(x.size()) - 2),
         "coordinates of the grid and axes of the input");
  for (std::size_t i = 2; i < x.size(); ++i)
    if (x[i].is_constant(0)) c.fail("samples an empty image");
  Shape y{x[0], x[1]};
  y.insert(y.end(), grid.begin() + 1, grid.end() - 1);
  c.out(0, c.dtype(0), y);
}

void deform_conv(Context& c) {
  expect_floats(c, {0, 1, 2, 3, 4});
  if (!c.shape(0) || !c.shape(1)) return c.out(0, c.dtype(0), std::nullopt);
  const Shape &x = *c.shape(0), &weight = *c.shape(1);
  if (x.size() < 3 || weight.size() != x.size())
    c.fail("input and weight must have the same rank of 3 or more");
  const std::size_t spatial = x.size() - 2;
  const auto &strides = positive_ints(c, key::kStrides, spatial),
             &dilations = positive_ints(c, key::kDilations, spatial), &pads = pads_of(c, spatial),
             &kernel = positive_ints(c, key::kKernelShape, spatial);
  const int64_t group = c.attributes().get_or(key::kGroup, 1),
                offsets = c.attributes().get_or(key::kOffsetGroup, 1);
  const auto divides = [](int64_t n, const Expr& size) {
    return n > 0 && size.constant().value_or(0) % n == 0;
  };
  if (!divides(group, weight[0]) || !divides(offsets, x[1]))
    c.fail("group or offset_group is not positive, or does not divide the channels");
  c.same(x[1], weight[1] * Expr(group), "channels of the input and group * channels of the weight");
  Expr taps = offsets;
  Shape y{x[0], weight[0]};
  for (std::size_t i = 0; i < spatial; ++i) {
    c.same(weight[2 + i], Expr(kernel[i]), "sizes of the weight and kernel_shape");
    taps = taps * Expr(kernel[i]);
    y.push_back(windows(x[2 + i], kernel[i], strides[i], dilations[i], pads[i] + pads[i + spatial]));
  }
  for (const std::size_t i : {std::size_t{2}, std::size_t{4}}) {
    if (!c.has(i) || !c.shape(i)) continue;
    expect_rank(c, i, static_cast<int64_t>(x.size()));
    Shape wanted = y;
    wanted[1] = i == 2 ? taps * Expr(static_cast<int64_t>(spatial)) : taps;
    for (std::size_t a = 0; a < wanted.size(); ++a)
      c.same((*c.shape(i))[a], wanted[a], i == 2 ? "sizes of the offsets" : "sizes of the mask");
  }
  if (c.has(3) && c.shape(3)) {
    expect_rank(c, 3, 1);
    c.same(c.shape(3)->front(), weight[0], "the bias and the output's channels");
  }
  c.out(0, c.dtype(0), y);
}

// The last two sizes are attributes; `fields`: numbers of one region.
void regions(Context& c, int64_t fields) {
  expect_floats(c, {0, 1});
  expect_rank(c, 0, 4);
  expect_rank(c, 1, 2);
  constexpr int64_t kMostBins = 1 << 16;  // of one axis
  const auto& size = positive_ints(c, key::kOutputShape, 2);
  if (size[0] > kMostBins || size[1] > kMostBins)
    c.fail("pools to " + std::to_string(size[0]) + " x " + std::to_string(size[1]) + "; at most " +
           std::to_string(kMostBins) + " an axis");
  if (!c.shape(0) || !c.shape(1)) return c.out(0, c.dtype(0), std::nullopt);
  c.same((*c.shape(1))[1], Expr(fields), "numbers of a region");
  c.out(0, c.dtype(0), Shape{(*c.shape(1))[0], (*c.shape(0))[1], size[0], size[1]});
}
void roi_align(Context& c) {
  constexpr int64_t kMostSamples = 1024, kMostOfRegion = 1 << 24;
  const int64_t ratio = c.attributes().get_or(key::kSamplingRatio, 0);
  if (ratio < 0 || ratio > kMostSamples)
    c.fail("sampling_ratio is " + std::to_string(ratio) + ", not in [0, " + std::to_string(kMostSamples) +
           "]");
  expect_rank(c, 2, 1);
  if (c.shape(1) && c.shape(2) && !c.shape(1)->empty())
    c.same(c.shape(1)->front(), c.shape(2)->front(), "regions and their images");
  regions(c, 4);
  const auto& size = c.attributes().get(key::kOutputShape);
  if (ratio * size[0] * (ratio * size[1]) > kMostOfRegion)
    c.fail("samples a region " + std::to_string(ratio * size[0]) + " x " + std::to_string(ratio * size[1]) +
           " times; at most " + std::to_string(kMostOfRegion) + " in all");
}
void max_roi_pool(Context& c) { regions(c, 5); }

void non_max_suppression(Context& c) {
  expect_floats(c, {0, 1, 3, 4});
  expect_rank(c, 0, 3);
  expect_rank(c, 1, 3);
  if (c.shape(0) && c.shape(1)) {
    c.same((*c.shape(0))[0], (*c.shape(1))[0], "images of boxes and scores");
    c.same((*c.shape(0))[1], (*c.shape(1))[2], "boxes and their scores");
    c.same((*c.shape(0))[2], Expr(4), "coordinates of a box");
  }
  c.out(0, DType::kI64, Shape{c.fresh(0, 0, "n"), Expr(3)});
}

// A list that is an attribute or an operand; fresh sizes where only the run tells, nothing if not even how many.
std::optional<Shape> sizes_operand(Context& c, std::size_t i, std::size_t axis) {
  if (c.attributes().has(key::kShape)) return c.attributes().get(key::kShape);
  if (const auto elements = c.elements(i)) return elements;
  if (!c.has(i) || !c.shape(i) || c.shape(i)->size() != 1 || !c.shape(i)->front().constant())
    return std::nullopt;
  Shape sizes;
  for (int64_t k = 0; k < *c.shape(i)->front().constant(); ++k) {
    const std::size_t at = axis + static_cast<std::size_t>(k);
    sizes.push_back(c.fresh(0, at, "d" + std::to_string(at)));
  }
  return sizes;
}

void max_unpool(Context& c) {
  if (!c.shape(0)) return c.out(0, c.dtype(0), std::nullopt);
  c.check_rank(0, 3);
  const Shape& x = *c.shape(0);
  const std::size_t spatial = x.size() - 2;
  if (c.shape(1)) {
    expect_rank(c, 1, static_cast<int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) c.same(x[i], (*c.shape(1))[i], "sizes of values and indices");
  }
  const auto &kernel = positive_ints(c, key::kKernelShape, spatial),
             &strides = positive_ints(c, key::kStrides, spatial), &pads = pads_of(c, spatial);
  if (c.has(2) || c.attributes().has(key::kShape)) {
    const auto y = sizes_operand(c, 2, 0);
    if (y && y->size() != x.size()) c.fail("its output_shape has " + std::to_string(y->size()) + " sizes");
    return c.out(0, c.dtype(0), y);
  }
  Shape y{x[0], x[1]};
  for (std::size_t i = 0; i < spatial; ++i)
    y.push_back((x[2 + i] - 1) * Expr(strides[i]) + Expr(kernel[i] - pads[i] - pads[i + spatial]));
  c.out(0, c.dtype(0), y);
}

void col2im(Context& c) {
  expect_rank(c, 0, 3);
  const auto image = sizes_operand(c, 1, 2);
  if (!c.shape(0) || !image) return c.out(0, c.dtype(0), std::nullopt);
  const Shape& x = *c.shape(0);
  const std::size_t spatial = image->size();
  const auto &strides = positive_ints(c, key::kStrides, spatial),
             &dilations = positive_ints(c, key::kDilations, spatial), &pads = pads_of(c, spatial);
  std::optional<std::vector<int64_t>> block;
  if (c.attributes().has(key::kKernelShape))
    block = c.attributes().get(key::kKernelShape);
  else if (const auto elements = c.elements(2))
    block = constants_of(*elements);
  Shape y{x[0], c.fresh(0, 1, "d1")};
  y.insert(y.end(), image->begin(), image->end());
  if (!block) return c.out(0, c.dtype(0), y);
  if (block->size() != spatial) c.fail("its block_shape has " + std::to_string(block->size()) + " sizes");
  int64_t taps = 1;
  Expr places = 1;
  for (std::size_t i = 0; i < spatial; ++i) {
    constexpr int64_t kMost = 1 << 20;
    if ((*block)[i] < 1 || (*block)[i] > kMost || taps > kMost)
      c.fail("a block of " + str(Shape(block->begin(), block->end())));
    taps *= (*block)[i];
    const Expr count =
        windows((*image)[i], (*block)[i], strides[i], dilations[i], pads[i] + pads[i + spatial]);
    if (count.constant().value_or(0) < 0) c.fail("its blocks are larger than the image");
    places = places * count;
  }
  c.same(x[2], places, "columns and blocks that fit the image");
  if (const auto depth = x[1].constant(); depth && *depth % taps)
    c.fail("its rows are no multiple of the block's size");
  y[1] = floordiv(x[1], Expr(taps));
  c.out(0, c.dtype(0), y);
}

}  // namespace

std::span<const Entry> vision_rules() {
  static constexpr Entry kRules[] = {
      {Op::kGridSample, grid_sample},
      {Op::kDeformConv, deform_conv},
      {Op::kRoiAlign, roi_align},
      {Op::kMaxRoiPool, max_roi_pool},
      {Op::kNonMaxSuppression, non_max_suppression},
      {Op::kMaxUnpool, max_unpool},
      {Op::kCol2Im, col2im},
  };
  return kRules;
}

}  // namespace ark::shape_rules
