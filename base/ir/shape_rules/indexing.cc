// Operators that pick elements: gather, scatter, one-hot, and those whose output size the data decides.
#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

void check_indices(Context& c, std::size_t i) {
  const DType t = c.dtype(i);
  if (t != DType::kUndefined && !is_integer(t))
    c.fail("indices are " + std::string(name_of(t)) + ", not integers");
}

Shape joined(const Shape& a, std::size_t a_begin, std::size_t a_end, const Shape& b) {
  Shape result(a.begin() + static_cast<std::ptrdiff_t>(a_begin),
               a.begin() + static_cast<std::ptrdiff_t>(a_end));
  result.insert(result.end(), b.begin(), b.end());
  return result;
}

void gather(Context& c) {
  check_indices(c, 1);
  if (!c.shape(0) || !c.shape(1)) return c.out(0, c.dtype(0), std::nullopt);
  const Shape &x = *c.shape(0), &indices = *c.shape(1);
  c.check_rank(0, 1);
  const auto axis = static_cast<std::size_t>(c.axis(c.attributes().get(key::kAxis), *c.rank(0)));
  Shape y = joined(x, 0, axis, indices);
  c.out(0, c.dtype(0),
        joined(y, 0, y.size(), Shape(x.begin() + static_cast<std::ptrdiff_t>(axis) + 1, x.end())));
}

void gather_elements(Context& c) {
  check_indices(c, 1);
  c.out(0, c.dtype(0), c.shape(1));
}

void gather_nd(Context& c) {
  check_indices(c, 1);
  if (!c.shape(0) || !c.shape(1)) return c.out(0, c.dtype(0), std::nullopt);
  c.check_rank(1, 1);
  const Shape &x = *c.shape(0), &indices = *c.shape(1);
  const auto depth = indices.back().constant();
  if (!depth) return c.out(0, c.dtype(0), std::nullopt);
  const int64_t first = c.attributes().get_or(key::kBatchDims, 0) + *depth;
  if (first < 0 || first > *c.rank(0)) c.fail("indices reach deeper than the rank of the data");
  c.out(0, c.dtype(0), joined(indices, 0, indices.size() - 1, Shape(x.begin() + first, x.end())));
}

void scatter(Context& c) {
  check_indices(c, 1);
  same_as_first(c);
}

void one_hot(Context& c) {
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {  // the depth, one number; and two values
    if (!c.shape(i)) continue;
    const Shape& shape = *c.shape(i);
    if (shape.size() > 1 || (i == 2 && shape.empty()))
      c.fail("its depth or its values have shape " + str(shape));
    if (!shape.empty())
      c.same(shape[0], static_cast<int64_t>(i), i == 1 ? "the depth's numbers and 1" : "the values and 2");
  }
  if (!c.shape(0)) return c.out(0, c.dtype(2), std::nullopt);
  Shape y = *c.shape(0);
  const int64_t axis = c.axis(c.attributes().get(key::kAxis), *c.rank(0) + 1);
  const auto depth = c.elements(1);
  const Expr size =
      depth && depth->size() == 1 ? (*depth)[0] : c.fresh(0, static_cast<std::size_t>(axis), "depth");
  y.insert(y.begin() + axis, size);
  c.out(0, c.dtype(2), y);
}

void non_zero(Context& c) {
  if (!c.shape(0)) return c.out(0, DType::kI64, std::nullopt);
  c.out(0, DType::kI64, Shape{Expr(*c.rank(0)), c.fresh(0, 1, "n")});
}

void compress(Context& c) {
  if (!c.attributes().has(key::kAxis)) return c.out(0, c.dtype(0), Shape{c.fresh(0, 0, "n")});
  if (!c.shape(0)) return c.out(0, c.dtype(0), std::nullopt);
  Shape y = *c.shape(0);
  const auto axis = static_cast<std::size_t>(c.axis(c.attributes().get(key::kAxis), *c.rank(0)));
  y.at(axis) = c.fresh(0, axis, "n");
  c.out(0, c.dtype(0), y);
}

void unique(Context& c) {
  const Expr n = c.fresh(0, 0, "n");
  std::optional<Shape> y = Shape{n};
  if (c.attributes().has(key::kAxis)) {
    y = c.shape(0);
    if (y) {
      const auto axis = static_cast<std::size_t>(c.axis(c.attributes().get(key::kAxis), *c.rank(0)));
      y->at(axis) = c.fresh(0, axis, "n");
    }
  }
  c.out(0, c.dtype(0), y);
  const bool flat = !c.attributes().has(key::kAxis) || !y;
  const Expr count = flat ? n : y->at(static_cast<std::size_t>(c.attributes().get(key::kAxis)));
  std::optional<Shape> inverse;
  if (c.shape(0))
    inverse = Shape{flat ? element_count(*c.shape(0))
                         : c.shape(0)->at(static_cast<std::size_t>(c.attributes().get(key::kAxis)))};
  c.out(1, DType::kI64, Shape{count});
  c.out(2, DType::kI64, inverse);
  c.out(3, DType::kI64, Shape{count});
}

}  // namespace

std::span<const Entry> indexing_rules() {
  static constexpr Entry kRules[] = {
      {Op::kGather, gather},      {Op::kGatherElements, gather_elements},
      {Op::kGatherND, gather_nd}, {Op::kScatterElements, scatter},
      {Op::kScatterND, scatter},  {Op::kOneHot, one_hot},
      {Op::kNonZero, non_zero},   {Op::kCompress, compress},
      {Op::kUnique, unique},
  };
  return kRules;
}

}  // namespace ark::shape_rules
