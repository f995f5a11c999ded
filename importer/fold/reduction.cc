#include <algorithm>
#include <cmath>
#include <limits>

#include "base/ir/keys.h"
#include "importer/fold/array.h"

namespace ark::fold {
namespace {

struct Folding {
  double start;
  double (*step)(double, double);
};

Folding folding_of(Op op) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto add = [](double s, double x) { return s + x; };
  switch (op) {
    case Op::kReduceProd:
      return {1, [](double s, double x) { return s * x; }};
    case Op::kReduceMax:
      return {-kInfinity, [](double s, double x) { return x != x || s != s ? s + x : std::max(s, x); }};
    case Op::kReduceMin:
      return {kInfinity, [](double s, double x) { return x != x || s != s ? s + x : std::min(s, x); }};
    case Op::kReduceL1:
      return {0, [](double s, double x) { return s + std::fabs(x); }};
    case Op::kReduceL2:
    case Op::kReduceSumSquare:
      return {0, [](double s, double x) { return s + x * x; }};
    default:
      return {0, add};
  }
}

Results reduce(const Call& c) {
  const Array& x = c.in[0];
  const std::size_t rank = x.dims.size();
  std::vector<int64_t> axes = c.attributes().get_or(key::kAxes, {});
  if (!c.attributes().has(key::kAxes) && c.has(1)) axes = c.in[1].ints;
  if (axes.empty() && c.attributes().get_or(key::kNoopWithEmptyAxes, 0)) return std::nullopt;
  std::vector<bool> gone(rank, axes.empty());
  for (const int64_t a : axes)
    gone.at(static_cast<std::size_t>(a < 0 ? a + static_cast<int64_t>(rank) : a)) = true;
  Dims kept, out;
  int64_t count = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    kept.push_back(gone[i] ? 1 : x.dims[i]);
    if (gone[i]) count *= x.dims[i];
    if (!gone[i] || c.attributes().get_or(key::kKeepdims, 1)) out.push_back(kept.back());
  }
  if (count == 0) return std::nullopt;
  const Folding f = folding_of(c.node.op);
  std::vector<double> sums(static_cast<std::size_t>(element_count(kept)), f.start);
  const auto index = broadcast_index(kept, x.dims);
  for (std::size_t i = 0; i < index.size(); ++i) {
    const double v = x.number(static_cast<int64_t>(i));
    if (!x.real && std::fabs(v) > 9e15) return std::nullopt;  // beyond double's integers
    double& s = sums[index[i]];
    s = f.step(s, v);
  }
  for (double& s : sums) {
    if (c.node.op == Op::kReduceMean) s /= static_cast<double>(count);
    if (c.node.op == Op::kReduceL2) s = std::sqrt(s);
    if (!x.real && std::fabs(s) > 9e15) return std::nullopt;
  }
  Array y{out, x.real, {}, {}};
  if (x.real)
    y.reals = std::move(sums);
  else
    y.ints.assign(sums.begin(), sums.end());
  return {{std::move(y)}};
}

Results cum_sum(const Call& c) {
  const Array& x = c.in[0];
  const int64_t rank = static_cast<int64_t>(x.dims.size());
  if (!c.attributes().has(key::kAxis) && (!c.has(1) || c.in[1].size() != 1))
    c.fail("the axis must be one number");
  int64_t axis = c.attributes().has(key::kAxis) ? c.attributes().get(key::kAxis) : c.in[1].integer(0);
  if (axis < -rank || axis >= rank) c.fail("axis outside the rank");
  if (axis < 0) axis += rank;
  const int64_t n = x.dims[axis], stride = strides_of(x.dims)[axis];
  const bool exclusive = c.attributes().get_or(key::kExclusive, 0),
             reverse = c.attributes().get_or(key::kReverse, 0);
  Array y = x;
  for (int64_t line = 0; n > 0 && line < x.size() / n; ++line) {
    const int64_t first = line / stride * stride * n + line % stride;
    double real = 0;
    int64_t integer = 0;
    for (int64_t k = 0; k < n; ++k) {
      const auto at = static_cast<std::size_t>(first + (reverse ? n - 1 - k : k) * stride);
      if (x.real) {
        y.reals[at] = exclusive ? real : real + x.reals[at];
        real += x.reals[at];
      } else {
        y.ints[at] = exclusive ? integer : integer + x.ints[at];
        integer += x.ints[at];
      }
    }
  }
  return {{std::move(y)}};
}

// Plain matrices and batches of them without broadcasting; larger products are left to kernels.
Results matmul(const Call& c) {
  const Array &a = c.in[0], &b = c.in[1];
  if (!a.real || a.dims.size() < 2 || b.dims.size() != a.dims.size() || c.has(2)) return std::nullopt;
  if (!std::equal(a.dims.begin(), a.dims.end() - 2, b.dims.begin())) return std::nullopt;
  const bool ta = c.attributes().get_or(key::kTransA, 0), tb = c.attributes().get_or(key::kTransB, 0);
  const std::size_t r = a.dims.size();
  const int64_t m = a.dims[r - (ta ? 1 : 2)], k = a.dims[r - (ta ? 2 : 1)], n = b.dims[r - (tb ? 2 : 1)];
  if (b.dims[r - (tb ? 1 : 2)] != k) c.fail("inner sizes of the product differ");
  Dims out = a.dims;
  out[r - 2] = m, out[r - 1] = n;
  const int64_t count = element_count(out);
  if (static_cast<double>(count) * static_cast<double>(k) > 64e6) return std::nullopt;
  const double alpha = c.attributes().get_or(key::kAlpha, 1);
  Array y = Array::zeros(out, true);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t batch = i / (m * n), row = i / n % m, column = i % n;
    double sum = 0;
    for (int64_t p = 0; p < k; ++p)
      sum += a.reals[batch * m * k + (ta ? p * m + row : row * k + p)] *
             b.reals[batch * k * n + (tb ? column * k + p : p * n + column)];
    y.reals[i] = alpha * sum;
  }
  return {{std::move(y)}};
}

}  // namespace

Evaluator reduction_evaluator(Op op) {
  switch (op) {
    case Op::kReduceSum:
    case Op::kReduceMean:
    case Op::kReduceMax:
    case Op::kReduceMin:
    case Op::kReduceProd:
    case Op::kReduceL1:
    case Op::kReduceL2:
    case Op::kReduceSumSquare:
      return reduce;
    case Op::kCumSum:
      return cum_sum;
    case Op::kMatMul:
      return matmul;
    default:
      return nullptr;
  }
}

}  // namespace ark::fold
