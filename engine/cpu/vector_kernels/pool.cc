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
    for (int64_t o = 0; o < w.out[last_]; ++o) {
      const TapRange range(w, last_, o);
      seen_.push_back(
          {w.position(last_, o, range.begin), range.end - range.begin, static_cast<double>(range.padded)});
    }
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

  // Of the last axis: where an output's taps begin in the row, how many there are, and with those of the padding.
  struct Seen {
    int64_t begin, count;
    double padded;
  };

  Taken join(const float* x, const Index& at, float* row) const {
    std::array<int64_t, 8> taps{};
    Index steps{};
    Taken taken{1, 1};
    for (std::size_t a = 0; a < last_; ++a) {
      const TapRange range(w_, a, at[a]);
      taps[a] = range.end - range.begin;
      taken.rows *= taps[a], taken.padded *= static_cast<double>(range.padded);
      if (taps[a] > 0) x += w_.position(a, at[a], range.begin) * in_[a];
      steps[a] = w_.dilation[a] * in_[a];
    }
    std::array<int64_t, 8> tap{};
    for (int64_t t = 0; t < taken.rows; ++t) {
      if (t == 0)
        std::copy_n(x, w_.in[last_], row);
      else
        run_pointwise(is_average_ ? Op::kAdd : Op::kMax, row, x, {}, row, w_.in[last_]);
      for (std::size_t a = last_; a-- > 0; tap[a] = 0) {  // the next one
        x += steps[a];
        if (++tap[a] < taps[a]) break;
        x -= taps[a] * steps[a];
      }
    }
    return taken;
  }

  void along(const float* row, Taken taken, float* y) const {
    const int64_t step = w_.dilation[last_];
    for (const Seen& seen : seen_) {
      const int64_t count = taken.rows > 0 ? seen.count : 0;
      const float* const from = row + seen.begin;
      if (is_average_) {
        float sum = 0;
        for (int64_t t = 0; t < count; ++t) sum += from[t * step];
        const double taps =
            counts_padding_ ? taken.padded * seen.padded : static_cast<double>(taken.rows * count);
        *y++ = sum / static_cast<float>(std::max(1.0, taps));
      } else {
        float best = -std::numeric_limits<float>::infinity();
        for (int64_t t = 0; t < count; ++t) {
          const float v = from[t * step];
          best = v > best || v != v ? v : best;
        }
        *y++ = best;
      }
    }
  }

  const Window& w_;
  const std::size_t last_;
  const bool is_average_, counts_padding_;
  const Index in_;
  std::vector<Seen> seen_;
};

void pool_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const bool has_indices = call.outputs.size() > 1 && call.outputs[1].present();
  if (!is_f32(call) || has_indices || x.dims[x.rank - 1] > Room::kPlane)
    return find_kernel(call.op)->tile(call, tile);
  const Window w = kernels::window_of(call, call.attributes->get(key::kKernelShape));
  // Whole rows of which outputs see little would take longer than these are charged for (base/ir/work.cc).
  constexpr double kSparse = 16;
  const std::size_t last = w.spatial - 1;
  if (static_cast<double>(w.in[last]) >
      kSparse * static_cast<double>(w.out[last]) * static_cast<double>(w.kernel[last]))
    return find_kernel(call.op)->tile(call, tile);
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
