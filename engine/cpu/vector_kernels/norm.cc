// Norms whose scale is a channel's: batch, group and instance norms.
#include <cmath>

#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"
#include "engine/cpu/vector_kernels/reduce.h"
#include "engine/cpu/vector_kernels/vector_kernels.h"

namespace ark::vector_kernels {
namespace {

using kernels::product;

// out = factor * x + bias; x and out may be one.
void scale_run(const float* x, float factor, float bias, float* out, int64_t n) {
  const int64_t shift = 0, whole = n / 16 * 16;
  simd::ShiftedSum sum{
      .x = x, .shifts = &shift, .factors = &factor, .terms = 1, .bias = bias, .out = out, .n = whole};
  if (whole) vectors().shifted_sum(sum);
  if (whole == n) return;
  float last[16]{};
  std::copy(x + whole, x + n, last);
  sum.x = sum.out = last;
  sum.n = n - whole;
  vectors().shifted_sum(sum);
  std::copy_n(last, n - whole, out + whole);
}

bool have_channels(const KernelCall& call, std::initializer_list<std::size_t> operands) {
  const TensorView& x = call.inputs[0];
  return is_f32(call) && x.rank >= 2 && std::ranges::all_of(operands, [&](std::size_t i) {
           return !kernels::has_input(call, i) || call.inputs[i].size() == x.dims[1];
         });
}

void batch_norm_tile(const KernelCall& call, int64_t tile) {
  if (!have_channels(call, {1, 2, 3, 4})) return find_kernel(call.op)->tile(call, tile);
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const int64_t channels = x.dims[1], space = product(x.shape().subspan(2));
  const double epsilon = call.attributes->get_or(key::kEpsilon, 1e-5);
  const auto of = [&](std::size_t i, int64_t c) {
    return static_cast<double>(call.inputs[i].as<float>()[c]);
  };
  const auto [begin, end] = kernels::elements_of(tile, y.size());
  for (int64_t i = begin; i < end;) {
    const int64_t c = i / space % channels, n = std::min(end - i, space - i % space);
    const double factor = of(1, c) / std::sqrt(of(4, c) + epsilon);
    scale_run(x.as<float>() + i, static_cast<float>(factor), static_cast<float>(of(2, c) - of(3, c) * factor),
              y.as<float>() + i, n);
    i += n;
  }
}

void group_norm_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  if (!have_channels(call, {1, 2})) return find_kernel(call.op)->tile(call, tile);
  const int64_t groups = call.attributes->get_or(key::kGroups, x.dims[1]), channels = x.dims[1] / groups,
                space = product(x.shape().subspan(2)), n = channels * space;
  float* out = y.as<float>() + tile * n;
  vectors().norm({.x = x.as<float>() + tile * n,
                  .out = out,
                  .n = n,
                  .epsilon = static_cast<float>(call.attributes->get_or(key::kEpsilon, 1e-5))});
  // What is left of a mean that stands in sixteen lanes: it shows where many numbers lie far from 0.
  const float rest = sum_of(out, n) / static_cast<float>(n);
  for (int64_t c = 0; c < channels; ++c) {
    const int64_t channel = tile % groups * channels + c;
    const auto of = [&](std::size_t i, float other) {
      return kernels::has_input(call, i) ? call.inputs[i].as<float>()[channel] : other;
    };
    const float scale = of(1, 1);
    scale_run(out + c * space, scale, of(2, 0) - scale * rest, out + c * space, space);
  }
}

}  // namespace

void register_norm(std::vector<Kernel>& by_op) {
  by_op[static_cast<std::size_t>(Op::kBatchNorm)].tile = batch_norm_tile;
  by_op[static_cast<std::size_t>(Op::kGroupNorm)].tile = group_norm_tile;
}

}  // namespace ark::vector_kernels
