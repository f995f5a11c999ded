// Pointwise operators, and tensors made from nothing.
#include <cmath>

#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

void unary_bool(Context& c) { c.out(0, DType::kBool, c.shape(0)); }

void cast(Context& c) { c.out(0, static_cast<DType>(c.attributes().get(key::kTo)), c.shape(0)); }

std::optional<Shape> broadcast_of_all(Context& c) {
  std::optional<Shape> shape = Shape{};
  for (std::size_t i = 0; i < c.inputs() && shape; ++i) {
    if (!c.has(i)) continue;
    if (!c.shape(i)) return std::nullopt;
    shape = c.broadcast(*shape, *c.shape(i));
  }
  return shape;
}

void require_same_types(Context& c, std::size_t first, std::size_t second) {
  const DType a = c.dtype(first), b = c.dtype(second);
  if (a != b && a != DType::kUndefined && b != DType::kUndefined)
    c.fail("operands have types " + std::string(name_of(a)) + " and " + std::string(name_of(b)));
}

void binary(Context& c) {
  require_same_types(c, 0, 1);
  c.out(0, c.dtype(0), broadcast_of_all(c));
}
void power(Context& c) { c.out(0, c.dtype(0), broadcast_of_all(c)); }  // the exponent may have another type
void compare(Context& c) {
  require_same_types(c, 0, 1);
  c.out(0, DType::kBool, broadcast_of_all(c));
}
void where(Context& c) {
  require_same_types(c, 1, 2);
  c.out(0, c.dtype(1), broadcast_of_all(c));
}

void dims(Context& c) {
  const Shape& values = c.attributes().get(key::kValues);
  if (c.attributes().get_or(key::kScalar, 0))
    c.out(0, DType::kI64, Shape{});
  else
    c.out(0, DType::kI64, Shape{Expr(static_cast<int64_t>(values.size()))});
}

void constant_of_shape(Context& c) {
  const DType type = c.attributes().get(key::kValue).dtype;
  if (c.attributes().has(key::kShape)) return c.out(0, type, c.attributes().get(key::kShape));
  if (const auto target = c.elements(0)) return c.out(0, type, *target);
  const auto& vector = c.shape(0);
  const auto rank = vector && vector->size() == 1 ? (*vector)[0].constant() : std::nullopt;
  c.out(0, type, rank ? std::optional(c.fresh_shape(0, *rank, "d")) : std::nullopt);
}

std::optional<Expr> scalar(Context& c, std::size_t i, Key<Shape> key) {
  if (c.attributes().has(key)) return c.attributes().get(key).at(0);
  const auto elements = c.elements(i);
  return elements && elements->size() == 1 ? std::optional((*elements)[0]) : std::nullopt;
}

// How many reals a Range of constants has.
std::optional<int64_t> count_of_reals(Context& c) {
  const auto start = c.constant(0), limit = c.constant(1), delta = c.constant(2);
  if (!start || !limit || !delta || !is_floating(start->dtype)) return std::nullopt;
  const double count = std::ceil((limit->real(0) - start->real(0)) / delta->real(0));
  if (!(count <= 1e9) || std::isinf(count))
    c.fail("Range from " + std::to_string(start->real(0)) + " to " + std::to_string(limit->real(0)) + " by " +
           std::to_string(delta->real(0)) + " has no end, or more than 10^9 elements");
  return static_cast<int64_t>(std::max(0.0, count));
}

void range(Context& c) {
  const DType type =
      c.has(0) ? c.dtype(0) : static_cast<DType>(c.attributes().get_or(key::kTo, int64_t(DType::kI64)));
  for (std::size_t i = 0; i < c.inputs(); ++i)
    if (c.count(i).value_or(1) != 1)
      c.fail("Range wants numbers, not input " + std::to_string(i) + " of " + str(*c.shape(i)));
  const auto start = scalar(c, 0, key::kStart), limit = scalar(c, 1, key::kLimit),
             delta = scalar(c, 2, key::kDelta);
  if (const auto count = count_of_reals(c)) return c.out(0, type, Shape{Expr(*count)});
  if (!start || !limit || !delta) return c.out(0, type, Shape{c.fresh(0, 0, "n")});
  if (delta->is_constant(0)) c.fail("Range with a step of 0");
  const auto step = delta->constant();
  const Expr span = step && *step < 0 ? *start - *limit : *limit - *start;
  Expr count = step ? ceildiv(span, *step < 0 ? Expr(0) - Expr(*step) : Expr(*step))
                    : ceildiv(*limit - *start, *delta);
  const auto least = count.lower_bound();
  if (!least || *least < 0) count = max(count, Expr(0));
  c.out(0, type, Shape{count});
}

std::vector<Entry> make_rules() {
  std::vector<Entry> rules;
  for (const pointwise::Row& row : pointwise::rows()) {
    const bool to_bool = row.result == pointwise::Result::kBool;
    rules.push_back({row.op, row.arity == 2 ? to_bool ? compare : binary
                             : to_bool      ? unary_bool
                                            : same_as_first});
  }
  rules.push_back({Op::kCast, cast});
  rules.push_back({Op::kPow, power});
  rules.push_back({Op::kWhere, where});
  rules.push_back({Op::kDims, dims});
  rules.push_back({Op::kConstantOfShape, constant_of_shape});
  rules.push_back({Op::kRange, range});
  rules.push_back({Op::kRandom, same_as_first});
  return rules;
}

}  // namespace

std::span<const Entry> pointwise_rules() {
  static const auto* rules = new std::vector<Entry>(make_rules());
  return *rules;
}

}  // namespace ark::shape_rules
