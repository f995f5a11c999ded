// Operators that move elements and keep them: reshape, transpose, expand, slice, concat, split, pad, tile, ...
#include <algorithm>
#include <set>

#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

// The constant length of input i's only axis: the rank that a shape operand asks for.
std::optional<int64_t> vector_length(Context& c, std::size_t i) {
  const auto& s = c.shape(i);
  return s && s->size() == 1 ? (*s)[0].constant() : std::nullopt;
}

void check_target(Context& c, const Shape& target) {
  for (const Expr& e : target)
    if (e.constant().value_or(0) < 0) c.fail("negative size in " + str(target));
}

void reshape(Context& c) {
  if (!c.attributes().has(key::kShape)) {
    const auto rank = vector_length(c, 1);
    return c.out(0, c.dtype(0), rank ? std::optional(c.fresh_shape(0, *rank, "d")) : std::nullopt);
  }
  const Shape& target = c.attributes().get(key::kShape);
  check_target(c, target);
  if (c.shape(0)) {
    const auto have = element_count(*c.shape(0)).constant(), want = element_count(target).constant();
    if (have && want && *have != *want) c.fail("cannot reshape " + str(*c.shape(0)) + " to " + str(target));
  }
  c.out(0, c.dtype(0), target);
}

void transpose(Context& c) {
  const auto& perm = c.attributes().get(key::kPerm);
  if (!c.shape(0)) return c.out(0, c.dtype(0), c.fresh_shape(0, static_cast<int64_t>(perm.size()), "d"));
  const Shape& x = *c.shape(0);
  std::set<int64_t> seen(perm.begin(), perm.end());
  if (perm.size() != x.size() || seen.size() != perm.size() ||
      (!perm.empty() && (*seen.begin() < 0 || *seen.rbegin() >= static_cast<int64_t>(perm.size()))))
    c.fail("perm is no permutation of " + std::to_string(x.size()) + " axes");
  Shape y;
  for (const int64_t p : perm) y.push_back(x[p]);
  c.out(0, c.dtype(0), y);
}

void expand(Context& c) {
  if (c.attributes().has(key::kShape)) {
    const Shape& target = c.attributes().get(key::kShape);
    check_target(c, target);
    if (c.shape(0)) c.broadcast(*c.shape(0), target);  // fails where they cannot meet
    return c.out(0, c.dtype(0), target);
  }
  const auto length = vector_length(c, 1);
  if (!length || !c.shape(0)) return c.out(0, c.dtype(0), std::nullopt);
  c.out(0, c.dtype(0), c.fresh_shape(0, std::max(*length, *c.rank(0)), "d"));
}

void slice(Context& c) {
  if (!c.shape(0)) return c.out(0, c.dtype(0), std::nullopt);
  Shape y = *c.shape(0);
  if (!c.attributes().has(key::kStarts)) {  // bounds are data: sizes of the sliced axes are too
    const auto axes = c.has(3) ? c.elements(3) : std::nullopt;
    for (std::size_t i = 0; i < y.size(); ++i) {
      bool sliced = !axes;
      for (std::size_t k = 0; axes && k < axes->size(); ++k)
        sliced |= c.axis((*axes)[k].constant().value_or(0), *c.rank(0)) == static_cast<int64_t>(i);
      if (sliced) y[i] = c.fresh(0, i, "d" + std::to_string(i));
    }
    return c.out(0, c.dtype(0), y);
  }
  const auto& axes = c.attributes().get(key::kAxes);
  const auto& steps = c.attributes().get(key::kSteps);
  const Shape &starts = c.attributes().get(key::kStarts), &ends = c.attributes().get(key::kEnds);
  if (starts.size() != axes.size() || ends.size() != axes.size() || steps.size() != axes.size())
    c.fail("Slice has bounds for " + std::to_string(starts.size()) + " axes, but " +
           std::to_string(axes.size()) + " axes");
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (steps[i] == 0) c.fail("Slice with a step of 0");
    const Expr span = steps[i] > 0 ? ends[i] - starts[i] : starts[i] - ends[i];
    Expr count = ceildiv(span, Expr(steps[i] > 0 ? steps[i] : -steps[i]));
    if (const auto low = count.lower_bound(); !low || *low < 0) count = max(count, Expr(0));
    y[c.axis(axes[i], *c.rank(0))] = count;
  }
  c.out(0, c.dtype(0), y);
}

void concat(Context& c) {
  std::optional<Shape> y;
  bool known = c.inputs() > 0;
  for (std::size_t i = 0; i < c.inputs(); ++i) {
    if (c.dtype(i) != c.dtype(0)) c.fail("Concat of different types");
    known &= c.shape(i).has_value();
  }
  if (!known) return c.out(0, c.dtype(0), std::nullopt);
  c.check_rank(0, 1);
  const int64_t axis = c.axis(c.attributes().get(key::kAxis), *c.rank(0));
  y = *c.shape(0);
  for (std::size_t i = 1; i < c.inputs(); ++i) {
    const Shape& x = *c.shape(i);
    if (x.size() != y->size()) c.fail("Concat of different ranks");
    for (std::size_t d = 0; d < x.size(); ++d) {
      const bool along = static_cast<int64_t>(d) == axis;
      (*y)[d] = along ? (*y)[d] + x[d] : c.same((*y)[d], x[d], "sizes of Concat's inputs off its axis");
    }
  }
  c.out(0, c.dtype(0), y);
}

void split(Context& c) {
  const int64_t axis = c.attributes().get(key::kAxis);
  const auto& x = c.shape(0);
  if (x) c.axis(axis, static_cast<int64_t>(x->size()));
  const Shape* sizes = c.attributes().has(key::kSizes) ? &c.attributes().get(key::kSizes) : nullptr;
  if (sizes && sizes->size() != c.outputs()) c.fail("Split has another number of sizes than outputs");
  if (x && sizes) {
    Expr sum = 0;
    for (const Expr& s : *sizes) sum = sum + s;
    c.same((*x)[axis], sum, "the axis of Split and the sum of its sizes");
  }
  for (std::size_t i = 0; i < c.outputs(); ++i) {
    std::optional<Shape> y = x;
    const std::size_t a = static_cast<std::size_t>(axis);
    if (y) (*y)[a] = sizes ? (*sizes)[i] : c.fresh(i, a, "split" + std::to_string(i));
    c.out(i, c.dtype(0), y);
  }
}

void pad(Context& c) {
  if (!c.shape(0)) return c.out(0, c.dtype(0), std::nullopt);
  Shape y = *c.shape(0);
  if (!c.attributes().has(key::kPadding)) return c.out(0, c.dtype(0), c.fresh_shape(0, *c.rank(0), "d"));
  const Shape& pads = c.attributes().get(key::kPadding);
  if (pads.size() != 2 * y.size())
    c.fail("Pad has " + std::to_string(pads.size()) + " amounts for rank " + std::to_string(y.size()));
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = y[i] + pads[i] + pads[i + y.size()];
  c.out(0, c.dtype(0), y);
}

void tile(Context& c) {
  if (!c.shape(0)) return c.out(0, c.dtype(0), std::nullopt);
  if (!c.attributes().has(key::kRepeats)) return c.out(0, c.dtype(0), c.fresh_shape(0, *c.rank(0), "d"));
  Shape y = *c.shape(0);
  const Shape& repeats = c.attributes().get(key::kRepeats);
  if (repeats.size() != y.size()) c.fail("Tile needs one repeat an axis");
  check_target(c, repeats);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = y[i] * repeats[i];
  c.out(0, c.dtype(0), y);
}

void depth_to_space(Context& c) {
  if (!c.shape(0)) return c.out(0, c.dtype(0), std::nullopt);
  const Shape& x = *c.shape(0);
  const Expr b = c.attributes().get(key::kBlocksize);
  if (x.size() != 4) c.fail("needs rank 4");
  if (b.constant().value_or(0) <= 0) c.fail("blocksize must be positive");
  const auto parts = [&](const Expr& size, const Expr& each) {
    if (mod(size, each).constant().value_or(0) != 0)
      c.fail(size.str() + " cannot be cut into blocks of " + each.str());
    return floordiv(size, each);
  };
  if (c.node().op == Op::kDepthToSpace)
    return c.out(0, c.dtype(0), Shape{x[0], parts(x[1], b * b), x[2] * b, x[3] * b});
  c.out(0, c.dtype(0), Shape{x[0], x[1] * b * b, parts(x[2], b), parts(x[3], b)});
}

void eye_like(Context& c) {
  if (c.shape(0) && c.shape(0)->size() != 2) c.fail("EyeLike wants a matrix, not " + str(*c.shape(0)));
  c.out(0, static_cast<DType>(c.attributes().get_or(key::kTo, static_cast<int64_t>(c.dtype(0)))), c.shape(0));
}

}  // namespace

std::span<const Entry> movement_rules() {
  static constexpr Entry kRules[] = {
      {Op::kReshape, reshape},
      {Op::kTranspose, transpose},
      {Op::kExpand, expand},
      {Op::kSlice, slice},
      {Op::kConcat, concat},
      {Op::kSplit, split},
      {Op::kPad, pad},
      {Op::kTile, tile},
      {Op::kTrilu, same_as_first},
      {Op::kReverseSequence, same_as_first},
      {Op::kDepthToSpace, depth_to_space},
      {Op::kSpaceToDepth, depth_to_space},
      {Op::kEyeLike, eye_like},
  };
  return kRules;
}

}  // namespace ark::shape_rules
