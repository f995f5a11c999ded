// Shape arithmetic on symbols: what is known of the elements of small integer tensors.

#include "base/error.h"
#include "base/ir/keys.h"
#include "base/ir/shape_rules/rules.h"

namespace ark::shape_rules {
namespace {

using Result = std::optional<Elements>;

bool non_negative(const Expr& e) {
  const auto low = e.lower_bound();
  return low && *low >= 0;
}

// The sign of a - b where it is provable: -1, 0 or 1 for the whole range; else the pair of provable bounds.
struct Comparison {
  std::optional<int64_t> low, high;  // of a - b
  bool less() const { return high && *high < 0; }
  bool greater() const { return low && *low > 0; }
  bool equal() const { return low && high && *low == 0 && *high == 0; }
  bool different() const { return less() || greater(); }
};
Comparison comparison(const Expr& a, const Expr& b) {
  const Expr difference = a - b;
  return {difference.lower_bound(), difference.upper_bound()};
}

std::optional<Expr> decided(bool yes, bool no) {
  if (yes) return Expr(1);
  if (no) return Expr(0);
  return std::nullopt;
}

std::optional<Expr> divide(const Expr& a, const Expr& b) {
  const auto ca = a.constant(), cb = b.constant();
  if (cb && *cb == 0) return std::nullopt;  // left to run time, where it is an error or dead
  if (cb && *cb == -1) return Expr(-1) * a;
  if (ca && cb) return Expr(*ca / *cb);  // truncates
  if (non_negative(a) && non_negative(b)) return floordiv(a, b);
  return std::nullopt;
}

std::optional<Expr> modulo(const Expr& a, const Expr& b, bool truncating) {
  const auto ca = a.constant(), cb = b.constant();
  if (cb && *cb == 0) return std::nullopt;
  if (cb && *cb == -1) return Expr(0);
  if (ca && cb && truncating) return Expr(*ca % *cb);
  if (truncating && !(non_negative(a) && non_negative(b))) return std::nullopt;
  return mod(a, b);
}

std::optional<Expr> logical(Op op, const Expr& a, const Expr& b) {
  const auto ca = a.constant(), cb = b.constant();
  const bool known = ca && cb;
  switch (op) {
    case Op::kAnd:
      return decided(known && *ca && *cb, (ca && !*ca) || (cb && !*cb));
    case Op::kOr:
      return decided((ca && *ca) || (cb && *cb), known && !*ca && !*cb);
    default:
      return decided(known && *ca != *cb, known && *ca == *cb);
  }
}

// Kernels' integers wrap, and know no limit of terms: what expressions cannot hold, or not where sizes are those of
// small tensors, is left to them.
template <typename F>
std::optional<Expr> held(F&& make) try {
  // The largest prime of which eight, for as many axes, and a factor of 2^15 fit in 63 bits: remainders by sizes that
  // files have are not 0, so that what divides by them is held.
  constexpr int64_t kSmallSize = 61;
  const std::optional<Expr> made = make();
  if (!made || made->constant()) return made;
  SymbolValues sizes;
  for (const std::string& symbol : made->symbols()) sizes[symbol] = kSmallSize;
  made->evaluate(sizes);
  return made;
} catch (const Error& e) {
  if (e.code() == Code::kInternal) throw;
  return std::nullopt;
}

std::optional<Expr> binary_element(const Node& node, const Expr& a, const Expr& b) {
  const Comparison cmp = comparison(a, b);
  switch (node.op) {
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      return divide(a, b);
    case Op::kMod:
      return modulo(a, b, node.attributes.get_or(key::kFmod, 0) != 0);
    case Op::kMin:
      return min(a, b);
    case Op::kMax:
      return max(a, b);
    case Op::kEqual:
      return decided(cmp.equal(), cmp.different());
    case Op::kLess:
      return decided(cmp.less(), cmp.low && *cmp.low >= 0);
    case Op::kLessOrEqual:
      return decided(cmp.high && *cmp.high <= 0, cmp.greater());
    case Op::kGreater:
      return decided(cmp.greater(), cmp.high && *cmp.high <= 0);
    case Op::kGreaterOrEqual:
      return decided(cmp.low && *cmp.low >= 0, cmp.less());
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor:
      return logical(node.op, a, b);
    default:
      return std::nullopt;
  }
}

std::optional<Expr> unary_element(Op op, const Expr& a) {
  switch (op) {
    case Op::kIdentity:
      return a;
    case Op::kNeg:
      return Expr(-1) * a;
    case Op::kAbs:
      if (non_negative(a)) return a;
      return a.constant() && *a.constant() != INT64_MIN ? std::optional(Expr(std::abs(*a.constant())))
                                                        : std::nullopt;
    case Op::kRelu:
      return max(a, Expr(0));
    case Op::kNot:
      return a.constant() ? std::optional(Expr(*a.constant() == 0)) : std::nullopt;
    case Op::kSign:
      if (a.constant()) return Expr((*a.constant() > 0) - (*a.constant() < 0));
      return a.lower_bound().value_or(0) > 0 ? std::optional(Expr(1)) : std::nullopt;
    default:
      return std::nullopt;
  }
}

// numpy broadcasting of vectors: equal lengths, or a single element.
const Expr& at(const Elements& e, std::size_t i) { return e[e.size() == 1 ? 0 : i]; }

Result unary(Context& c) {
  auto x = c.elements(0);
  if (!x) return std::nullopt;
  for (Expr& e : *x) {
    const auto y = held([&] { return unary_element(c.node().op, e); });
    if (!y) return std::nullopt;
    e = *y;
  }
  return x;
}

Result cast(Context& c) {
  const DType to = static_cast<DType>(c.attributes().get(key::kTo));
  auto x = c.elements(0);
  if (!x) return std::nullopt;
  if (to == DType::kI64 || to == DType::kI32) return x;
  if (to != DType::kBool) return std::nullopt;
  for (Expr& e : *x) {
    const auto y = held([&] {
      const Comparison cmp = comparison(e, Expr(0));
      return decided(cmp.different(), cmp.equal());
    });
    if (!y) return std::nullopt;
    e = *y;
  }
  return x;
}

Result binary(Context& c) {
  const auto a = c.elements(0), b = c.elements(1);
  if (!a || !b) return std::nullopt;
  const std::size_t n = a->size() == 1 ? b->size() : a->size();
  Elements result;
  for (std::size_t i = 0; i < n; ++i) {
    const auto y = held([&] { return binary_element(c.node(), at(*a, i), at(*b, i)); });
    if (!y) return std::nullopt;
    result.push_back(*y);
  }
  return result;
}

Result where(Context& c) {
  const auto condition = c.elements(0), a = c.elements(1), b = c.elements(2);
  if (!condition || !a || !b) return std::nullopt;
  const std::size_t n = condition->size() != 1 ? condition->size() : a->size() != 1 ? a->size() : b->size();
  Elements result;
  for (std::size_t i = 0; i < n; ++i) {
    const auto choice = at(*condition, i).constant();
    if (!choice) return std::nullopt;
    result.push_back(*choice ? at(*a, i) : at(*b, i));
  }
  return result;
}

Result clip(Context& c) {
  auto x = c.elements(0);
  const auto low = c.elements(1), high = c.elements(2);
  if (!x || (c.has(1) && !(low && low->size() == 1)) || (c.has(2) && !(high && high->size() == 1)))
    return std::nullopt;
  for (Expr& e : *x) {
    const auto y = held([&] {
      const Expr least = low ? max(e, low->front()) : e;
      return std::optional(high ? min(least, high->front()) : least);
    });
    if (!y) return std::nullopt;
    e = *y;
  }
  return x;
}

// The length of output 0, if it has rank <= 1 and a constant length.
std::optional<int64_t> length(Context& c) {
  const auto& shape = c.outputs() ? c.output_shape(0) : c.shape(0);
  if (!shape || shape->size() > 1) return std::nullopt;
  return shape->empty() ? std::optional<int64_t>(1) : (*shape)[0].constant();
}

Result gather(Context& c) {
  const auto data = c.elements(0), indices = c.elements(1);
  if (!data || !indices || c.rank(0) != 1) return std::nullopt;
  const int64_t n = static_cast<int64_t>(data->size());
  Elements result;
  for (const Expr& index : *indices) {
    const auto i = index.constant();
    if (!i) return std::nullopt;
    if (*i < -n || *i >= n)
      c.fail("index " + std::to_string(*i) + " is outside [0, " + std::to_string(n) + ")");
    result.push_back((*data)[*i < 0 ? *i + n : *i]);
  }
  return result;
}

Result concat(Context& c) {
  Elements result;
  for (std::size_t i = 0; i < c.inputs(); ++i) {
    const auto part = c.elements(i);
    if (!part) return std::nullopt;
    result.insert(result.end(), part->begin(), part->end());
  }
  return result;
}

Result slice(Context& c) {
  const auto x = c.elements(0);
  if (!x || c.rank(0) != 1 || !c.attributes().has(key::kStarts)) return std::nullopt;
  if (c.attributes().get(key::kAxes).empty()) return x;
  const auto begin = c.attributes().get(key::kStarts).at(0).constant(),
             end = c.attributes().get(key::kEnds).at(0).constant();
  const int64_t step = c.attributes().get(key::kSteps).at(0);
  if (!begin || !end) return std::nullopt;
  Elements result;
  for (int64_t i = *begin; step > 0 ? i < *end : i > *end; i += step)
    result.push_back(x->at(static_cast<std::size_t>(i)));
  return result;
}

Result same_elements(Context& c) { return c.elements(0); }

Result repeat(Context& c) {  // Expand, ConstantOfShape
  Elements one;
  if (c.node().op == Op::kConstantOfShape) {
    const Tensor& value = c.attributes().get(key::kValue);
    if (!is_integer(value.dtype) && value.dtype != DType::kBool) return std::nullopt;
    one = {Expr(value.integer(0))};
  } else if (auto x = c.elements(0)) {
    one = *x;
  } else {
    return std::nullopt;
  }
  const auto n = length(c);
  if (!n || *n > kMaxElements) return std::nullopt;
  Elements result;
  for (std::size_t i = 0; i < static_cast<std::size_t>(*n); ++i) result.push_back(at(one, i));
  return result;
}

Result range(Context& c) {
  const auto n = length(c);
  if (!n || *n > kMaxElements || !c.attributes().has(key::kStart)) return std::nullopt;
  const Expr &start = c.attributes().get(key::kStart).at(0), &delta = c.attributes().get(key::kDelta).at(0);
  Elements result;
  for (int64_t i = 0; i < *n; ++i) {
    const auto y = held([&] { return std::optional(start + Expr(i) * delta); });
    if (!y) return std::nullopt;
    result.push_back(*y);
  }
  return result;
}

Result reduce(Context& c) {
  const auto x = c.elements(0);
  if (!x || c.rank(0) != 1 || x->empty()) return std::nullopt;
  if (c.attributes().has(key::kAxes) ? c.attributes().get(key::kAxes).empty() : c.has(1)) return std::nullopt;
  Expr result = (*x)[0];
  for (std::size_t i = 1; i < x->size(); ++i) {
    const Expr& e = (*x)[i];
    const auto y = held([&]() -> std::optional<Expr> {
      switch (c.node().op) {
        case Op::kReduceSum:
          return result + e;
        case Op::kReduceProd:
          return result * e;
        case Op::kReduceMax:
          return max(result, e);
        default:
          return min(result, e);
      }
    });
    if (!y) return std::nullopt;
    result = *y;
  }
  return Elements{result};
}

Result dims(Context& c) { return c.attributes().get(key::kValues); }

using Propagate = Result (*)(Context&);
Propagate propagation_of(Op op) {
  static constexpr std::pair<Op, Propagate> kRules[] = {
      {Op::kCast, cast},
      {Op::kWhere, where},
      {Op::kClip, clip},
      {Op::kGather, gather},
      {Op::kConcat, concat},
      {Op::kSlice, slice},
      {Op::kReshape, same_elements},
      {Op::kTranspose, same_elements},
      {Op::kExpand, repeat},
      {Op::kConstantOfShape, repeat},
      {Op::kRange, range},
      {Op::kDims, dims},
  };
  for (const auto& [known, rule] : kRules)
    if (known == op) return rule;
  if (is_one_of(op, {Op::kReduceSum, Op::kReduceProd, Op::kReduceMax, Op::kReduceMin})) return reduce;
  return is_unary_pointwise(op) ? unary : is_binary_pointwise(op) ? binary : nullptr;
}

}  // namespace

std::optional<Elements> propagate_elements(Context& c) {
  const Propagate rule = propagation_of(c.node().op);
  if (!rule || c.outputs() == 0 || c.node().outputs[0] == kNoValue) return std::nullopt;
  const auto& shape = c.output_shape(0);
  if (!shape || shape->size() > 1) return std::nullopt;
  auto result = rule(c);
  const auto n = length(c);
  if (result && (!n || *n != static_cast<int64_t>(result->size()))) return std::nullopt;
  return result;
}

}  // namespace ark::shape_rules
