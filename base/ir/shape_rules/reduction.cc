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
    if (c.count(1).value_or(1) != 1) c.fail("K must be one number, not " + str(*c.shape(1)));
    const Expr wanted = c.attributes().has(key::kTopK) ? c.attributes().get(key::kTopK).at(0)
                        : k && k->size() == 1          ? k->front()
                                                       : c.fresh(0, axis, "k");
    const auto most = (*y)[axis].constant(), count = wanted.constant();
    if (count && (*count < 0 || (most && *count > *most)))
      c.fail("wants the top " + wanted.str() + " of " + (*y)[axis].str());
    (*y)[axis] = wanted;
  }
  c.out(0, c.dtype(0), y);
  c.out(1, DType::kI64, y);
}

void check_floats(Context& c, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (c.has(i) && !is_floating(c.dtype(i)))
      c.fail("normalizes with input " + std::to_string(i) + " of type " + std::string(name_of(c.dtype(i))));
}

// Scale and bias broadcast to the normalized axes; further axes in front of them are ones.
void check_rows(Context& c) {
  along_axis(c);
  check_floats(c, 3);
  if (!c.shape(0)) return;
  const Shape& x = *c.shape(0);
  const auto normalized =
      x.size() - static_cast<std::size_t>(c.axis(c.attributes().get(key::kAxis), *c.rank(0)));
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (!c.has(i) || !c.shape(i)) continue;
    const Shape& s = *c.shape(i);
    for (std::size_t back = 1; back <= s.size(); ++back) {
      const Expr &size = s[s.size() - back], want = back <= normalized ? x[x.size() - back] : Expr(1);
      if (!size.is_constant(1) && size.constant() && want.constant() && !(size == want))
        c.fail("scale or bias of " + str(s) + " does not fit the normalized axes of " + str(x));
    }
  }
}

// Each operand has one element a channel (axis 1).
void channels(Context& c) {
  same_as_first(c);
  check_floats(c, c.inputs());
  if (c.node().op == Op::kGroupNorm) c.check_rank(0, 2);
  const auto& x = c.shape(0);
  if (!x) return;
  const auto count = x->size() > 1 ? (*x)[1].constant() : std::optional<int64_t>(1);
  for (std::size_t i = 1; i < c.inputs(); ++i) {
    const auto have = c.count(i);
    if (count && have && *have != *count)
      c.fail("input " + std::to_string(i) + " has " + std::to_string(*have) + " elements for " +
             std::to_string(*count) + " channels");
  }
  const int64_t groups = c.attributes().get_or(key::kGroups, 1);
  if (groups < 1 || (count && *count % groups)) c.fail("the channels are no multiple of the groups");
}

// (y, mean?, inv_std?): the statistics have size 1 on the normalized axes.
void layer_norm(Context& c) {
  check_rows(c);
  std::optional<Shape> statistics = c.shape(0);
  if (statistics)
    for (std::size_t i = static_cast<std::size_t>(c.axis(c.attributes().get(key::kAxis), *c.rank(0)));
         i < statistics->size(); ++i)
      (*statistics)[i] = 1;
  c.out(1, DType::kF32, statistics);
  c.out(2, DType::kF32, statistics);
}

}  // namespace

void along_axis(Context& c) {
  if (c.shape(0) && c.attributes().has(key::kAxis)) c.axis(c.attributes().get(key::kAxis), *c.rank(0));
  same_as_first(c);
}

std::span<const Entry> reduction_rules() {
  static constexpr Entry kRules[] = {
      {Op::kReduceSum, reduce},    {Op::kReduceMean, reduce},
      {Op::kReduceMax, reduce},    {Op::kReduceMin, reduce},
      {Op::kReduceProd, reduce},   {Op::kReduceL1, reduce},
      {Op::kReduceL2, reduce},     {Op::kReduceSumSquare, reduce},
      {Op::kReduceLogSum, reduce}, {Op::kReduceLogSumExp, reduce},
      {Op::kArgMax, arg},          {Op::kArgMin, arg},
      {Op::kCumSum, along_axis},   {Op::kCumProd, along_axis},
      {Op::kTopK, top_k},          {Op::kLayerNorm, layer_norm},
      {Op::kRmsNorm, check_rows},  {Op::kGroupNorm, channels},
      {Op::kBatchNorm, channels},  {Op::kLrn, same_as_first},
  };
  return kRules;
}

}  // namespace ark::shape_rules
