// Transforms of signals, determinants, trees.
#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

std::optional<Expr> only_element(const Context& c, std::size_t i) {
  const auto elements = c.elements(i);
  return elements && elements->size() == 1 ? std::optional(elements->front()) : std::nullopt;
}

void dft(Context& c) {
  if (!c.shape(0)) return c.out(0, c.dtype(0), std::nullopt);
  c.check_rank(0, 2);
  Shape y = *c.shape(0);
  const int64_t signal = *c.rank(0);
  if (!is_floating(c.dtype(0))) c.fail("transforms type " + std::string(name_of(c.dtype(0))));
  const auto parts = y.back().constant();
  const bool inverse = c.attributes().get_or(key::kInverse, 0) != 0,
             onesided = c.attributes().get_or(key::kOnesided, 0) != 0;
  if (parts && *parts != 1 && *parts != 2)
    c.fail("its last axis has " + std::to_string(*parts) + " parts, not 1 or 2");
  if (parts && onesided && *parts != (inverse ? 2 : 1))
    c.fail(inverse ? "a onesided inverse of real coefficients" : "a onesided transform of a complex signal");
  y.back() = inverse && onesided ? 1 : 2;
  std::optional<int64_t> axis;
  if (c.attributes().has(key::kAxis))
    axis = c.attributes().get(key::kAxis);
  else if (const auto element = only_element(c, 2))
    axis = element->constant();
  if (!axis) {
    for (std::size_t i = 0; i + 1 < y.size(); ++i) y[i] = c.fresh(0, i, "d" + std::to_string(i));
    return c.out(0, c.dtype(0), y);
  }
  const auto at = static_cast<std::size_t>(c.axis(*axis, signal));
  if (static_cast<int64_t>(at) == signal - 1) c.fail("transforms along the axis of real and imaginary parts");
  Expr length = inverse && onesided ? Expr(2) * (y[at] - 1) : y[at];
  if (c.has(1)) {
    const auto given = only_element(c, 1);
    if (!given) {
      if (const auto n = c.count(1); n && *n != 1) c.fail("its length must be one number");
      y[at] = c.fresh(0, at, "length");
      return c.out(0, c.dtype(0), y);
    }
    length = *given;
  }
  // A length that is mostly padding costs its file nothing.
  constexpr int64_t kLongest = 1 << 21, kLongestPadded = 1 << 19;
  const int64_t longest = c.has(1) && !(y[at].constant() >= kLongestPadded) ? kLongestPadded : kLongest;
  if (const auto n = length.constant(); n && (*n < 1 || *n > longest))
    c.fail("a transform of length " + length.str() + ", not in [1, " + std::to_string(longest) + "]");
  y[at] = onesided && !inverse ? floordiv(length, Expr(2)) + 1 : length;
  c.out(0, c.dtype(0), y);
}

void mel_weights(Context& c) {
  const auto bins = only_element(c, 0), length = only_element(c, 1);
  c.out(0, static_cast<DType>(c.attributes().get(key::kTo)),
        Shape{length ? floordiv(*length, Expr(2)) + 1 : c.fresh(0, 0, "rows"),
              bins ? *bins : c.fresh(0, 1, "bins")});
}

void det(Context& c) {
  if (!c.shape(0)) return c.out(0, c.dtype(0), std::nullopt);
  c.check_rank(0, 2);
  Shape y = *c.shape(0);
  c.same(y[y.size() - 1], y[y.size() - 2], "rows and columns of a determinant");
  y.resize(y.size() - 2);
  c.out(0, c.dtype(0), y);
}

void tree_ensemble(Context& c) {
  const auto expect = [&](std::size_t i, int64_t rank, bool is_index) {
    if (const auto r = c.rank(i); r && *r != rank)
      c.fail("input " + std::to_string(i) + " has rank " + std::to_string(*r) + ", not " +
             std::to_string(rank));
    if (is_index && c.dtype(i) != DType::kI64) c.fail("input " + std::to_string(i) + " must be of type i64");
  };
  expect(0, 2, false);
  expect(1, 1, true);
  expect(2, 2, true);
  expect(3, 1, false);
  expect(4, 2, true);
  expect(5, 1, true);
  expect(6, 1, false);
  if (c.shape(2) && c.shape(3)) {
    c.same((*c.shape(2))[1], Expr(5), "numbers of a node");
    c.same((*c.shape(2))[0], (*c.shape(3))[0], "nodes and thresholds");
  }
  if (c.shape(4)) c.same((*c.shape(4))[1], Expr(2), "numbers of a leaf");
  if (c.shape(5) && c.shape(6)) c.same((*c.shape(5))[0], (*c.shape(6))[0], "targets and weights");
  const int64_t targets = c.attributes().get(key::kN);
  constexpr int64_t kMostTargets = 1 << 20;
  if (targets < 1 || targets > kMostTargets)
    c.fail("has " + std::to_string(targets) + " targets, not in [1, " + std::to_string(kMostTargets) + "]");
  c.out(0, c.dtype(6), c.shape(0) ? std::optional(Shape{(*c.shape(0))[0], Expr(targets)}) : std::nullopt);
}

void lookup(Context& c) {
  if (const auto keys = c.count(1), values = c.count(2); keys && values && *keys != *values)
    c.fail("has " + std::to_string(*keys) + " keys and " + std::to_string(*values) + " values");
  c.out(0, c.dtype(2), c.shape(0));
}

void bit_cast(Context& c) {
  const auto to = static_cast<DType>(c.attributes().get(key::kTo));
  if (c.dtype(0) != DType::kUndefined && bits_of(c.dtype(0)) != bits_of(to))
    c.fail("the bits of " + std::string(name_of(c.dtype(0))) + " as " + std::string(name_of(to)));
  c.out(0, to, c.shape(0));
}

}  // namespace

std::span<const Entry> signal_rules() {
  static constexpr Entry kRules[] = {
      {Op::kDft, dft},       {Op::kMelWeightMatrix, mel_weights},
      {Op::kDet, det},       {Op::kTreeEnsemble, tree_ensemble},
      {Op::kLookup, lookup}, {Op::kBitCast, bit_cast},
  };
  return kRules;
}

}  // namespace ark::shape_rules
