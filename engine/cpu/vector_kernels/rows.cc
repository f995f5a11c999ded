// Operators over whole rows: softmaxes, norms.
#include <algorithm>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"
#include "base/ir/rowwise_host.h"
#include "engine/cpu/simd/transpose.h"
#include "engine/cpu/vector_kernels/vector_kernels.h"

namespace ark::vector_kernels {
namespace {

using kernels::product;

constexpr int64_t kRowsOfTile = 16;  // neighbours of a strided row share its cache lines

struct Rows {
  int64_t length = 1, stride = 1, count = 0;
  explicit Rows(const KernelCall& call) {
    const TensorView& x = call.inputs[0];
    if (x.rank > 0) {
      const auto axis =
          static_cast<std::size_t>(kernels::norm_axis(call.attributes->get_or(key::kAxis, -1), x.rank));
      length = x.dims[axis], stride = product(x.shape().subspan(axis + 1));
    }
    count = length ? x.size() / length : 0;
  }
  // Of strided ones as many as fit in the room.
  bool fit() const { return stride == 1 || length <= Room::kPlane / kRowsOfTile; }
};

void rowwise_tile(const KernelCall& call, int64_t tile) {
  const Rows rows(call);
  if (!is_f32(call) || !rows.fit()) return find_kernel(call.op)->tile(call, tile);
  const float p = static_cast<float>(rowwise::parameter_of(*rowwise::row_of(call.op), *call.attributes));
  const auto* x = call.inputs[0].as<float>();
  auto* y = call.outputs[0].as<float>();
  const int64_t n = rows.length, last = std::min(rows.count, (tile + 1) * kRowsOfTile);
  for (int64_t r = tile * kRowsOfTile; r < last;) {
    if (rows.stride == 1) {
      vectors().rowwise(call.op, x + r * n, p, y + r * n, n);
      ++r;
      continue;
    }
    const int64_t base = r / rows.stride * n * rows.stride + r % rows.stride,
                  count = std::min(last - r, rows.stride - r % rows.stride);
    float* block = room().plane;
    simd::transpose(x + base, rows.stride, n, count, block, n);
    for (int64_t i = 0; i < count; ++i) vectors().rowwise(call.op, block + i * n, p, block + i * n, n);
    simd::transpose(block, n, count, n, y + base, rows.stride);
    r += count;
  }
}

// Of norms over the last axes whose scale and bias, if there are any, have an element for each of a row.
void norm_tile(const KernelCall& call, int64_t tile) {
  const TensorView& x = call.inputs[0];
  const auto axis =
      static_cast<std::size_t>(kernels::norm_axis(call.attributes->get_or(key::kAxis, -1), x.rank));
  const int64_t n = product(x.shape().subspan(axis));
  const auto fits = [&](std::size_t i) { return !kernels::has_input(call, i) || call.inputs[i].size() == n; };
  const auto statistic = [&](std::size_t i) { return i < call.outputs.size() && call.outputs[i].present(); };
  if (!is_f32(call) || !fits(1) || !fits(2) || statistic(1) || statistic(2))
    return find_kernel(call.op)->tile(call, tile);
  const auto operand = [&](std::size_t i) {
    return kernels::has_input(call, i) ? call.inputs[i].as<float>() : nullptr;
  };
  vectors().norm({.x = x.as<float>() + tile * n,
                  .scale = operand(1),
                  .bias = operand(2),
                  .out = call.outputs[0].as<float>() + tile * n,
                  .n = n,
                  .epsilon = static_cast<float>(call.attributes->get_or(key::kEpsilon, 1e-5)),
                  .rms = call.op == Op::kRmsNorm});
}

}  // namespace

void register_rows(std::vector<Kernel>& by_op) {
  for (const rowwise::Row& row : rowwise::rows()) by_op[static_cast<std::size_t>(row.op)].tile = rowwise_tile;
  for (const Op op : {Op::kLayerNorm, Op::kRmsNorm}) by_op[static_cast<std::size_t>(op)].tile = norm_tile;
}

}  // namespace ark::vector_kernels
