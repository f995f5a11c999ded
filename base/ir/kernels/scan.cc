// CumSum and CumProd: operators along one axis whose elements depend on those before.
#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"

namespace ark::kernels {
namespace {

constexpr int64_t kRows = 16;  // rows along the axis of one tile

std::size_t scan_axis(const KernelCall& call) {
  const int64_t axis =
      has_input(call, 1) ? scalar<int64_t>(call, 1, "the axis") : call.attributes->get_or(key::kAxis, -1);
  return static_cast<std::size_t>(norm_axis(axis, call.inputs[0].rank));
}
std::vector<OutputType> scan_shapes(const KernelCall& call) {
  scan_axis(call);
  return like_first(call);
}
// An axis that is an input is not known before the step runs: then one tile has all rows.
int64_t scan_grid(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  if (has_input(call, 1)) return x.size() == 0 ? 0 : 1;
  const int64_t n = x.rank ? x.dims[scan_axis(call)] : 1;
  return n == 0 ? 0 : (x.size() / n + kRows - 1) / kRows;
}

// Calls f(base, stride, n) for each row of the tile.
template <typename F>
void each_row(const KernelCall& call, int64_t tile, F&& f) {
  const TensorView& x = call.inputs[0];
  if (x.rank == 0) return f(int64_t{0}, int64_t{1}, int64_t{1});
  const std::size_t axis = scan_axis(call);
  const int64_t n = x.dims[axis], inner = product(x.shape().subspan(axis + 1)), rows = x.size() / n;
  const int64_t end = has_input(call, 1) ? rows : std::min(rows, (tile + 1) * kRows);
  for (int64_t r = tile * kRows; r < end; ++r) f(r / inner * n * inner + r % inner, inner, n);
}

void cumulative_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const bool exclusive = call.attributes->get_or(key::kExclusive, 0) != 0,
             reverse = call.attributes->get_or(key::kReverse, 0) != 0, is_product = call.op == Op::kCumProd;
  with_compute_type(x.dtype, [&](auto type) {
    using C = decltype(type);
    using N = pointwise::NumberOf<C>;  // integers wrap around
    each_row(call, tile, [&](int64_t base, int64_t stride, int64_t n) {
      C so_far = is_product ? C{1} : C{};
      for (int64_t j = 0; j < n; ++j) {
        const int64_t at = base + (reverse ? n - 1 - j : j) * stride;
        const C v = load_one<C>(x, at);
        const C next = static_cast<C>(is_product ? N(so_far) * N(v) : N(so_far) + N(v));
        store_one<C>(y, at, exclusive ? so_far : next);
        so_far = next;
      }
    });
  });
}

}  // namespace

void register_scan(std::vector<Kernel>& into) {
  for (const Op op : {Op::kCumSum, Op::kCumProd})
    into.push_back({op, scan_shapes, scan_grid, cumulative_tile});
}

}  // namespace ark::kernels
