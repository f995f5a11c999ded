// Reductions, and operators along one axis.
#include <algorithm>

#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

Shape reduced(Context& c, const Shape& x, std::vector<int64_t> axes, bool keep) {
  for (int64_t& a : axes) a = c.axis(a, static_cast<int64_t>(x.size()));
  Shape y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool gone = std::find(axes.begin(), axes.end(), static_cast<int64_t>(i)) != axes.end();
    if (!gone)
      y.push_back(x[i]);
    else if (keep)
      y.emplace_back(1);
  }
  return y;
}

void reduce(Context& c) {
  const bool keep = c.attributes().get_or(key::kKeepdims, 1) != 0;
  if (!c.shape(0)) return c.out(0, c.dtype(0), std::nullopt);
  const Shape& x = *c.shape(0);
  std::vector<int64_t> axes = c.attributes().get_or(key::kAxes, {});
  if (c.has(1) && !c.attributes().has(key::kAxes)) {
    const auto elements = c.elements(1);
    for (std::size_t i = 0; elements && i < elements->size(); ++i)
      if (const auto axis = (*elements)[i].constant()) axes.push_back(*axis);
    if (!elements || axes.size() != elements->size())  // axes are data
      return c.out(0, c.dtype(0), keep ? std::optional(c.fresh_shape(0, *c.rank(0), "d")) : std::nullopt);
  }
  if (axes.empty()) {
    if (c.attributes().get_or(key::kNoopWithEmptyAxes, 0)) return same_as_first(c);
    for (int64_t i = 0; i < *c.rank(0); ++i) axes.push_back(i);
  }
  c.out(0, c.dtype(0), reduced(c, x, axes, keep));
}

void arg(Context& c) {
  if (!c.shape(0)) return c.out(0, DType::kI64, std::nullopt);
  const auto axis = static_cast<std::size_t>(c.axis(c.attributes().get(key::kAxis), *c.rank(0)));
  if (axis < c.shape(0)->size() && (*c.shape(0))[axis].is_constant(0))
    c.fail("ArgMax/ArgMin over an empty axis");
  c.out(0, DType::kI64,
        reduced(c, *c.shape(0), {c.attributes().get(key::kAxis)},
                c.attributes().get_or(key::kKeepdims, 1) != 0));
}

void top_k(Context& c) {
  std::optional<Shape> y = c.shape(0);
  if (y) {
    c.check_rank(0, 1);
    const auto axis = static_cast<std::size_t>(c.axis(c.attributes().get(key::kAxis), *c.rank(0)));
    const auto k = c.elements(1);
    (*y)[axis] = c.attributes().has(key::kTopK) ? c.attributes().get(key::kTopK).at(0)
                 : k && k->size() == 1          ? k->front()
                                                : c.fresh(0, axis, "k");
  }
  c.out(0, c.dtype(0), y);
  c.out(1, DType::kI64, y);
}

void along_axis(Context& c) {
  if (c.shape(0) && c.attributes().has(key::kAxis)) c.axis(c.attributes().get(key::kAxis), *c.rank(0));
  same_as_first(c);
}

// (y, mean?, inv_std?): the statistics have size 1 on the normalized axes.
void layer_norm(Context& c) {
  along_axis(c);
  std::optional<Shape> statistics = c.shape(0);
  if (statistics)
    for (std::size_t i = static_cast<std::size_t>(c.axis(c.attributes().get(key::kAxis), *c.rank(0)));
         i < statistics->size(); ++i)
      (*statistics)[i] = 1;
  c.out(1, DType::kF32, statistics);
  c.out(2, DType::kF32, statistics);
}

}  // namespace

std::span<const Entry> reduction_rules() {
  static constexpr Entry kRules[] = {
      {Op::kReduceSum, reduce},
      {Op::kReduceMean, reduce},
      {Op::kReduceMax, reduce},
      {Op::kReduceMin, reduce},
      {Op::kReduceProd, reduce},
      {Op::kReduceL1, reduce},
      {Op::kReduceL2, reduce},
      {Op::kReduceSumSquare, reduce},
      {Op::kReduceLogSum, reduce},
      {Op::kReduceLogSumExp, reduce},
      {Op::kArgMax, arg},
      {Op::kArgMin, arg},
      {Op::kCumSum, along_axis},
      {Op::kTopK, top_k},
      {Op::kSoftmax, along_axis},
      {Op::kLogSoftmax, along_axis},
      {Op::kLayerNorm, layer_norm},
      {Op::kRmsNorm, along_axis},
      {Op::kGroupNorm, same_as_first},
      {Op::kBatchNorm, same_as_first},
      {Op::kLpNorm, along_axis},
      {Op::kLrn, same_as_first},
  };
  return kRules;
}

}  // namespace ark::shape_rules
