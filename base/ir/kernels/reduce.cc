// Reductions over any set of axes, ArgMax/ArgMin. Sums accumulate in double for floating types, and for integers where
// a root or logarithm of them is the result.
#include <cmath>
#include <limits>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

constexpr int64_t kRows = 64;  // outputs of one tile

// Which axes are reduced; nothing set and `nothing` true means: identity.
struct Axes {
  std::array<bool, 8> reduced{};
  bool nothing = false;
};
Axes axes_of(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const auto given = ints_operand(call, key::kAxes, 1);
  Axes a;
  if (!given || given->empty()) {
    a.nothing = call.attributes->get_or(key::kNoopWithEmptyAxes, 0) != 0;
    if (!a.nothing) a.reduced.fill(true);
    return a;
  }
  for (int64_t axis : *given) a.reduced[norm_axis(axis, x.rank)] = true;
  return a;
}
int64_t reduce_grid(const KernelCall& call) { return (call.outputs[0].size() + kRows - 1) / kRows; }

template <typename A>
struct Accumulator {
  Op op;
  A value;
  A shift{};  // LogSumExp: the running maximum
  Accumulator(Op op, DType type) : op(op), value(start(op, type)) {
    if (op == Op::kReduceLogSumExp) shift = lowest();
  }
  static A lowest() {
    return std::is_floating_point_v<A> ? -std::numeric_limits<A>::infinity()
                                       : std::numeric_limits<A>::lowest();
  }
  // What the maximum (minimum) of nothing is: the least (greatest) value of the storage type.
  static A extreme(DType type, bool least) {
    if constexpr (std::is_floating_point_v<A>) {
      return least ? lowest() : -lowest();
    } else {
      const int bits = type == DType::kBool ? 1 : bits_of(type);
      const uint64_t all = ~uint64_t{0} >> (64 - bits);
      if (is_signed(type)) return static_cast<A>(least ? ~(all >> 1) : all >> 1);
      return static_cast<A>(least ? 0 : all);
    }
  }
  static A start(Op op, DType type) {
    if (op == Op::kReduceMax || op == Op::kReduceMin) return extreme(type, op == Op::kReduceMax);
    return op == Op::kReduceProd ? A{1} : A{0};
  }
  void add(A x) {
    switch (op) {
      case Op::kReduceMax:
        if (x > value || x != x) value = x;
        break;
      case Op::kReduceMin:
        if (x < value || x != x) value = x;
        break;
      case Op::kReduceProd:
        value = static_cast<A>(value * x);
        break;
      case Op::kReduceL1:
        value = static_cast<A>(value + (x < A{0} ? static_cast<A>(A{0} - x) : x));
        break;
      case Op::kReduceL2:
      case Op::kReduceSumSquare:
        value = static_cast<A>(value + x * x);
        break;
      case Op::kReduceLogSumExp:
        if constexpr (std::is_floating_point_v<A>) {
          if (x > shift)
            value = value * std::exp(shift - x) + 1, shift = x;
          else
            value += x == shift ? 1 : std::exp(x - shift);  // infinity less itself is no number; NaN stays
          break;
        }
        [[fallthrough]];
      default:
        value = static_cast<A>(value + x);
    }
  }
  A result(int64_t n) const {
    const auto real = static_cast<double>(value);
    switch (op) {
      case Op::kReduceMean:
        return n                             ? static_cast<A>(value / static_cast<A>(n))
               : std::is_floating_point_v<A> ? std::numeric_limits<A>::quiet_NaN()
                                             : A{0};
      case Op::kReduceL2:
        return static_cast<A>(std::sqrt(real));
      case Op::kReduceLogSum:
        return static_cast<A>(std::log(real));
      case Op::kReduceLogSumExp:
        return static_cast<A>(std::log(real) + static_cast<double>(shift));
      default:
        return value;
    }
  }
};

bool is_real(Op op) { return is_one_of(op, {Op::kReduceL2, Op::kReduceLogSum, Op::kReduceLogSumExp}); }

// Integers end at their type's ends, and have its least for what is no number, as ONNX Runtime's.
template <typename C, typename A>
C stored(const Accumulator<A>& sum, int64_t count, DType type) {
  const A y = sum.result(count);
  if constexpr (std::is_floating_point_v<A> && !std::is_floating_point_v<C>) {
    const C low = Accumulator<C>::extreme(type, true), high = Accumulator<C>::extreme(type, false);
    if (!(y > static_cast<A>(low))) return low;
    if (y >= static_cast<A>(high)) return high;
  }
  return static_cast<C>(y);
}

void reduce_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const Axes axes = axes_of(call);
  const Index own = strides_of(x.shape());
  Dims outer, inner;
  Index outer_strides{}, inner_strides{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(x.rank); ++i) {
    Dims& dims = axes.reduced[i] ? inner : outer;
    (axes.reduced[i] ? inner_strides : outer_strides)[dims.size()] = own[i];
    dims.push_back(x.dims[i]);
  }
  const int64_t count = product(inner), begin = tile * kRows, end = std::min(y.size(), begin + kRows);
  if (begin >= end) return;
  const auto reduce = [&]<typename C, typename A>() {
    Odometer row(outer, {outer_strides}, begin);
    for (int64_t i = begin; i < end; ++i, row.next()) {
      Accumulator<A> sum(call.op, x.dtype);
      if (axes.nothing) {
        const C v = load_one<C>(x, i);
        sum.add(static_cast<A>(v));
        const bool is_itself = call.op == Op::kReduceSum || call.op == Op::kReduceMean;
        store_one<C>(y, i, is_itself ? v : stored<C>(sum, 1, x.dtype));
        continue;
      }
      if (count) {
        Odometer at(inner, {inner_strides}, 0);
        for (int64_t j = 0; j < count; ++j, at.next())
          sum.add(static_cast<A>(load_one<C>(x, row.offset(0) + at.offset(0))));
      }
      store_one<C>(y, i, stored<C>(sum, count, x.dtype));
    }
  };
  with_compute_type(x.dtype, [&](auto type) {
    using C = decltype(type);
    using Sum = std::conditional_t<std::is_floating_point_v<C>, double, C>;
    if (is_real(call.op))
      reduce.template operator()<C, double>();
    else
      reduce.template operator()<C, Sum>();
  });
}

void arg_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const auto axis = static_cast<std::size_t>(norm_axis(call.attributes->get_or(key::kAxis, 0), x.rank));
  const int64_t n = x.dims[axis], inner = product(x.shape().subspan(axis + 1));
  const bool last = call.attributes->get_or(key::kSelectLastIndex, 0) != 0, want_max = call.op == Op::kArgMax;
  const int64_t begin = tile * kRows, end = std::min(y.size(), begin + kRows);
  with_compute_type(x.dtype, [&](auto type) {
    using C = decltype(type);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t base = i / inner * n * inner + i % inner;
      C best = load_one<C>(x, base);
      int64_t at = 0;
      for (int64_t j = 1; j < n; ++j) {
        const C v = load_one<C>(x, base + j * inner);
        if ((want_max ? v > best : v < best) || (last && v == best)) best = v, at = j;
      }
      y.as<int64_t>()[i] = at;
    }
  });
}

}  // namespace

void register_reduce(std::vector<Kernel>& into) {
  for (Op op = Op::kReduceSum; is_reduction(op); op = static_cast<Op>(static_cast<int>(op) + 1))
    into.push_back({op, by_rule, reduce_grid, reduce_tile});
  for (const Op op : {Op::kArgMax, Op::kArgMin}) into.push_back({op, by_rule, reduce_grid, arg_tile});
}

}  // namespace ark::kernels
