// Pooling: one (image, channel) a tile.
#include <limits>

#include "base/ir/kernels/common.h"
#include "base/ir/kernels/window.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

int64_t plane_grid(const KernelCall& call) { return call.inputs[0].dims[0] * call.inputs[0].dims[1]; }

void pool_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const Window w = window_of(call, call.attributes->get(key::kKernelShape));
  const bool average = call.op == Op::kAveragePool,
             count_pad = call.attributes->get_or(key::kCountIncludePad, 0) != 0;
  const int64_t in_size = product(w.in), out_size = product(w.out);
  const Index in_strides = strides_of(w.in);
  if (out_size == 0) return;
  Odometer out(w.out, {}, 0);
  for (int64_t o = 0; o < out_size; ++o, out.next()) {
    double best = -std::numeric_limits<double>::infinity(), sum = 0;
    double padded_taps = 1;
    int64_t where = 0, inside_taps = 1, corner = 0;
    Dims taps;
    Index steps{};
    for (std::size_t a = 0; a < w.spatial; ++a) {
      const TapRange range(w, a, out.index()[a]);
      const int64_t count = range.end - range.begin;
      taps.push_back(count);
      inside_taps *= count, padded_taps *= static_cast<double>(range.padded);
      if (count > 0) corner += w.position(a, out.index()[a], range.begin) * in_strides[a];
      if (count > 1) steps[a] = w.dilation[a] * in_strides[a];
    }
    Odometer tap(taps, {steps}, 0);
    for (int64_t t = 0; t < inside_taps; ++t, tap.next()) {
      const int64_t from = corner + tap.offset(0);
      const double v = load_one<double>(x, tile * in_size + from);
      sum += v;
      if (v > best || v != v) best = v, where = from;
    }
    store_one<double>(
        y, tile * out_size + o,
        average ? sum / std::max(1.0, count_pad ? padded_taps : static_cast<double>(inside_taps)) : best);
    if (!average && call.outputs.size() > 1 && call.outputs[1].present())
      call.outputs[1].as<int64_t>()[tile * out_size + o] = tile * in_size + where;
  }
}

void global_tile(const KernelCall& call, int64_t tile) {
  const TensorView& x = call.inputs[0];
  const int64_t n = product(x.shape().subspan(2));
  double best = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double v = load_one<double>(x, tile * n + i);
    sum += v;
    best = v > best || v != v ? v : best;
  }
  store_one<double>(call.outputs[0], tile,
                    call.op == Op::kGlobalMaxPool ? best : sum / static_cast<double>(n));
}

}  // namespace

void register_pool(std::vector<Kernel>& into) {
  for (const Op op : {Op::kMaxPool, Op::kAveragePool}) into.push_back({op, by_rule, plane_grid, pool_tile});
  for (const Op op : {Op::kGlobalAveragePool, Op::kGlobalMaxPool})
    into.push_back({op, by_rule, plane_grid, global_tile});
}

}  // namespace ark::kernels
