// The operators of base/ir/rowwise.h, a row at a time in double.
#include <algorithm>
#include <limits>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"
#include "base/ir/rowwise_host.h"

namespace ark::kernels {
namespace {

constexpr int64_t kRowsOfTile = 16;

struct PlainRow {
  using F = pointwise::Real<double>;
  using Value = double;
  std::vector<double> x;  // y, once it is set

  template <class Fn>
  double sum(Fn f) const {
    double all = 0;
    for (const double v : x) all += f(v).v;
    return all;
  }
  template <class Fn>
  double max(Fn f) const {
    double most = -std::numeric_limits<double>::infinity();
    for (const double v : x) most = std::max(most, f(v).v);
    return most;
  }
  template <class Fn>
  void set(Fn f) {
    for (double& v : x) v = f(v).v;
  }
};

// The rows' length, and how far apart their elements are.
std::pair<int64_t, int64_t> length_and_stride(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const auto axis =
      static_cast<std::size_t>(norm_axis(call.attributes->get_or(key::kAxis, -1), std::max(x.rank, 1)));
  if (x.rank == 0) return {1, 1};
  return {x.dims[axis], product(x.shape().subspan(axis + 1))};
}
std::vector<OutputType> rowwise_shapes(const KernelCall& call) {
  length_and_stride(call);
  return like_first(call);
}
int64_t rows_in(const KernelCall& call) {
  const int64_t n = length_and_stride(call).first;
  return n == 0 ? 0 : call.inputs[0].size() / n;
}
int64_t rowwise_grid(const KernelCall& call) { return (rows_in(call) + kRowsOfTile - 1) / kRowsOfTile; }

void rowwise_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const auto [n, stride] = length_and_stride(call);
  const double p = rowwise::parameter_of(*rowwise::row_of(call.op), *call.attributes);
  PlainRow row{std::vector<double>(static_cast<std::size_t>(n))};
  for (int64_t r = tile * kRowsOfTile; r < std::min(rows_in(call), (tile + 1) * kRowsOfTile); ++r) {
    const int64_t base = r / stride * n * stride + r % stride;
    for (int64_t j = 0; j < n; ++j) row.x[j] = load_one<double>(x, base + j * stride);
    rowwise::run(call.op, row, p);
    for (int64_t j = 0; j < n; ++j) store_one<double>(y, base + j * stride, row.x[j]);
  }
}

}  // namespace

void register_rowwise(std::vector<Kernel>& into) {
  for (const rowwise::Row& row : rowwise::rows())
    into.push_back({row.op, rowwise_shapes, rowwise_grid, rowwise_tile});
}

}  // namespace ark::kernels
