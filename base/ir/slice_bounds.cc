#include "base/ir/slice_bounds.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "base/ir/keys.h"

namespace ark {
namespace {

using Assumptions = std::vector<std::pair<Expr, Expr>>;

// Exporters write "to the end" as INT64_MAX or INT32_MAX; no dimension comes near.
constexpr int64_t kEnd = std::numeric_limits<int32_t>::max();

bool at_least(const Expr& e, int64_t bound) {
  const auto low = e.lower_bound();
  return low && *low >= bound;
}
bool at_most(const Expr& e, int64_t bound) {
  const auto high = e.upper_bound();
  return high && *high <= bound;
}

// A bound for a positive step, clamped to [0, dim].
class Clamp {
 public:
  Clamp(const Expr& dim, Assumptions& assumptions) : dim_(dim), assumptions_(assumptions) {}

  std::optional<Expr> operator()(const Expr& bound) {
    if (const auto c = bound.constant()) return from_constant(*c);
    if (at_least(bound, 0)) return from_start(bound);
    if (at_most(bound, 0)) return from_end(bound);
    if (is_far_before(bound)) return Expr(0);
    return std::nullopt;
  }

 private:
  Expr from_constant(int64_t c) {
    if (c >= kEnd) return dim_;
    if (c <= -kEnd) return 0;
    if (c >= 0) return min(Expr(c), dim_);
    if (c == -1 && !dim_.constant()) {
      // The last element: nobody asks for it of nothing.
      assumptions_.emplace_back(min(dim_, Expr(1)), Expr(1));
      return dim_ - 1;
    }
    return max(dim_ + Expr(c), Expr(0));
  }

  // A symbolic bound counted from the start. Against a table of fixed length it is taken to lie inside, and
  // the caller of the graph is held to that; against a symbolic size the minimum is kept.
  Expr from_start(const Expr& bound) {
    const Expr clamped = min(bound, dim_);
    if (!dim_.constant() || clamped == bound) return clamped;
    assumptions_.emplace_back(clamped, bound);
    return bound;
  }

  // A size less "all": no size comes near.
  static bool is_far_before(const Expr& bound) {
    std::map<std::string, Expr> nothing;
    for (const std::string& name : bound.symbols()) nothing.emplace(name, 0);
    const auto least = bound.substitute(nothing).constant();
    return least && *least <= -kEnd;
  }

  // -n with n a size: the last n. For n == 0 ONNX means "from the start", which nobody intends.
  Expr from_end(const Expr& bound) {
    if (!at_most(bound, -1)) assumptions_.emplace_back(max(bound, Expr(-1)), Expr(-1));
    return max(dim_ + bound, Expr(0));
  }

  Expr dim_;
  Assumptions& assumptions_;
};

// A constant bound for a negative step, clamped to [-1, dim - 1].
std::optional<Expr> clamp_backwards(const Expr& dim, const Expr& bound) {
  const auto c = bound.constant();
  if (!c) return std::nullopt;
  if (*c >= kEnd) return dim - 1;
  if (*c <= -kEnd) return Expr(-1);
  if (*c < 0) return max(dim + bound, Expr(-1));
  return min(bound, dim - 1);
}

// Backwards an end may lie before the first element; a start is an element, if there is one.
std::optional<Expr> start_backwards(const Expr& dim, const Expr& bound) {
  const auto clamped = clamp_backwards(dim, bound);
  const bool is_before = bound.constant().value_or(0) < -1;
  return is_before ? min(max(*clamped, Expr(0)), dim - 1) : clamped;
}

}  // namespace

std::optional<Attributes> slice_bounds(const Shape& x, const std::vector<int64_t>& axes, const Shape& starts,
                                       const Shape& ends, std::vector<int64_t> steps,
                                       Assumptions& assumptions) {
  Shape begin, end;
  for (int64_t& step : steps) step = std::clamp(step, -kEnd, kEnd);  // a longer one takes no more
  Assumptions needed;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const Expr& dim = x[axes[i]];
    Clamp clamp(dim, needed);
    const auto b = steps[i] > 0 ? clamp(starts[i]) : start_backwards(dim, starts[i]);
    const auto e = steps[i] > 0 ? clamp(ends[i]) : clamp_backwards(dim, ends[i]);
    if (!b || !e) return std::nullopt;
    begin.push_back(*b);
    end.push_back(*e);
  }
  for (auto& pair : needed) {
    const bool trivial = pair.first == pair.second;
    if (!trivial && std::find(assumptions.begin(), assumptions.end(), pair) == assumptions.end())
      assumptions.push_back(std::move(pair));
  }
  return Attributes{{key::kAxes, axes}, {key::kStarts, begin}, {key::kEnds, end}, {key::kSteps, steps}};
}

Attributes slice_of(int64_t axis, const Expr& begin, const Expr& end, int64_t step) {
  return {{key::kAxes, std::vector<int64_t>{axis}},
          {key::kStarts, Shape{begin}},
          {key::kEnds, Shape{end}},
          {key::kSteps, std::vector<int64_t>{step}}};
}

}  // namespace ark
