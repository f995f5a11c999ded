// Pooling of planes: along all axes but the last whole rows at once, then along these.
#include <algorithm>
#include <limits>

#include "base/ir/kernels/common.h"
#include "base/ir/kernels/window.h"
#include "base/ir/keys.h"
#include "engine/cpu/vector_kernels/reduce.h"
#include "engine/cpu/vector_kernels/vector_kernels.h"

namespace ark::vector_kernels {
namespace {

using kernels::product, kernels::Index, kernels::Odometer, kernels::TapRange, kernels::Window;

// The rows of one plane.
class PlanePool {
 public:
  PlanePool(const KernelCall& call, const Window& w)
      : w_(w),
        last_(w.spatial - 1),
        is_average_(call.op == Op::kAveragePool),
        counts_padding_(call.attributes->get_or(key::kCountIncludePad, 0) != 0),
        in_(kernels::strides_of(w.in)) {
    for (int64_t o = 0; o < w.out[last_]; ++o) ranges_.emplace_back(w, last_, o);
  }

  // Room for a row of the plane.
  void run(const float* x, float* row, float* y) const {
    const Dims outer(w_.out.begin(), w_.out.end() - 1);
    const int64_t rows = product(outer);
    Odometer at(outer, {}, 0);
    for (int64_t r = 0; r < rows; ++r, at.next(), y += w_.out[last_]) along(row, join(x, at.index(), row), y);
  }

 private:
  struct Taken {
    int64_t rows;   // of the plane, whose largest elements or sums stand in the row
    double padded;  // and with those of the padding
  };

  Taken join(const float* x, const Index& at, float* row) const {
    Dims taps;
    Index steps{};
    Taken taken{1, 1};
    int64_t corner = 0;
    for (std::size_t a = 0; a < last_; ++a) {
      const TapRange range(w_, a, at[a]);
      taps.push_back(range.end - range.begin);
      taken.rows *= taps.back(), taken.padded *= static_cast<double>(range.padded);
      if (taps.back() > 0) corner += w_.position(a, at[a], range.begin) * in_[a];
      steps[a] = w_.dilation[a] * in_[a];
    }
    Odometer tap(taps, {steps}, 0);
    for (int64_t t = 0; t < taken.rows; ++t, tap.next()) {
      const float* from = x + corner + tap.offset(0);
      if (t == 0)
        std::copy_n(from, w_.in[last_], row);
      else
        run_pointwise(is_average_ ? Op::kAdd : Op::kMax, row, from, {}, row, w_.in[last_]);
    }
    return taken;
  }

  void along(const float* row, Taken taken, float* y) const {
    for (int64_t o = 0; o < w_.out[last_]; ++o) {
      const TapRange& range = ranges_[static_cast<std::size_t>(o)];
      const int64_t count = taken.rows > 0 ? range.end - range.begin : 0, step = w_.dilation[last_];
      const float* from = row + w_.position(last_, o, range.begin);
      if (is_average_) {
        float sum = 0;
        for (int64_t t = 0; t < count; ++t) sum += from[t * step];
        const double taps = counts_padding_ ? taken.padded * static_cast<double>(range.padded)
                                            : static_cast<double>(taken.rows * count);
        y[o] = sum / static_cast<float>(std::max(1.0, taps));
      } else {
        float best = -std::numeric_limits<float>::infinity();
        for (int64_t t = 0; t < count; ++t) {
          const float v = from[t * step];
          best = v > best || v != v ? v : best;
        }
        y[o] = best;
      }
    }
  }

  const Window& w_;
  const std::size_t last_;
  const bool is_average_, counts_padding_;
  const Index in_;
  std::vector<TapRange> ranges_;  // of the last axis
};

void pool_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const bool has_indices = call.outputs.size() > 1 && call.outputs[1].present();
  if (!is_f32(call) || has_indices || x.dims[x.rank - 1] > Room::kPlane)
    return find_kernel(call.op)->tile(call, tile);
  const Window w = kernels::window_of(call, call.attributes->get(key::kKernelShape));
  PlanePool(call, w).run(x.as<float>() + tile * product(w.in), room().plane,
                         y.as<float>() + tile * product(w.out));
}

void global_tile(const KernelCall& call, int64_t tile) {
  if (!is_f32(call)) return find_kernel(call.op)->tile(call, tile);
  const int64_t n = product(call.inputs[0].shape().subspan(2));
  const float* from = call.inputs[0].as<float>() + tile * n;
  call.outputs[0].as<float>()[tile] =
      call.op == Op::kGlobalMaxPool ? largest_of(from, n) : sum_of(from, n) / static_cast<float>(n);
}

}  // namespace

void register_pool(std::vector<Kernel>& by_op) {
  for (const Op op : {Op::kMaxPool, Op::kAveragePool}) by_op[static_cast<std::size_t>(op)].tile = pool_tile;
  for (const Op op : {Op::kGlobalMaxPool, Op::kGlobalAveragePool})
    by_op[static_cast<std::size_t>(op)].tile = global_tile;
}

}  // namespace ark::vector_kernels
