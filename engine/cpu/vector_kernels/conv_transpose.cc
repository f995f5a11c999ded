// Transposed convolutions: products of the weights and the image give what each tap adds to an output channel, a few
// columns of the image at a time.
#include <algorithm>

#include "base/ir/kernels/common.h"
#include "base/ir/kernels/window.h"
#include "base/ir/keys.h"
#include "engine/cpu/vector_kernels/vector_kernels.h"

namespace ark::vector_kernels {
namespace {

using kernels::product, kernels::Index, kernels::Odometer, kernels::Window;

constexpr int64_t kWantedRows = 48;                           // of a tile's product: channels times taps
constexpr int64_t kMostTaps = Room::kPlane / Room::kColumns;  // whose sums fit in the room

struct TransposedSizes {
  int64_t groups, outputs, inputs, taps, in, out, channels, blocks;  // channels of a group; of one tile
  explicit TransposedSizes(const KernelCall& call)
      : groups(call.attributes->get_or(key::kGroup, 1)),
        outputs(call.inputs[1].dims[1]),
        inputs(call.inputs[0].dims[1] / groups),
        taps(product(call.inputs[1].shape().subspan(2))),
        in(product(call.inputs[0].shape().subspan(2))),
        out(product(call.outputs[0].shape().subspan(2))),
        channels(
            std::clamp<int64_t>(kWantedRows / std::max<int64_t>(taps, 1), 1, std::max<int64_t>(outputs, 1))),
        blocks((outputs + channels - 1) / channels) {}
  bool fit() const { return taps <= kMostTaps; }
};

// Adds to one output channel what `tap` makes of columns [first, first + count) of the image.
void add_tap(const Window& w, const Index& tap, const float* sums, int64_t first, int64_t count, float* y) {
  const std::size_t last = w.spatial - 1;
  const Index pitch = kernels::strides_of(w.out);
  const int64_t width = w.in[last], stride = w.stride[last],
                shift = tap[last] * w.dilation[last] - w.begin[last];
  // Of a row, the elements that this tap puts inside the output.
  const int64_t low = shift < 0 ? (-shift + stride - 1) / stride : 0,
                high = shift < w.out[last] ? std::min(width, (w.out[last] - 1 - shift) / stride + 1) : 0;
  const Dims outer(w.in.begin(), w.in.end() - 1);
  Odometer row(outer, {}, first / width);
  for (int64_t c = 0; c < count; row.next()) {
    const int64_t begin = (first + c) % width, run = std::min(count - c, width - begin);
    int64_t start = shift;
    bool inside = true;
    for (std::size_t a = 0; a < last; ++a) {
      const int64_t o = row.index()[a] * w.stride[a] + tap[a] * w.dilation[a] - w.begin[a];
      inside = inside && o >= 0 && o < w.out[a];
      start += inside ? o * pitch[a] : 0;
    }
    const int64_t from = std::max(begin, low), to = std::min(begin + run, high);
    const float* values = sums + c - begin;
    for (int64_t i = from; inside && i < to; ++i) y[start + i * stride] += values[i];
    c += run;
  }
}

int64_t transposed_grid(const KernelCall& call) {
  if (!is_f32(call) || !TransposedSizes(call).fit()) return find_kernel(call.op)->grid(call);
  const TransposedSizes s(call);
  return call.outputs[0].dims[0] * s.groups * s.blocks;
}

void transposed_tile(const KernelCall& call, int64_t tile) {
  if (!is_f32(call) || !TransposedSizes(call).fit()) return find_kernel(call.op)->tile(call, tile);
  const TransposedSizes s(call);
  const Window w = kernels::transposed_window_of(call);
  const int64_t first = tile % s.blocks * s.channels, channels = std::min(s.channels, s.outputs - first),
                group = tile / s.blocks % s.groups, image = tile / s.blocks / s.groups;
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const float *from = x.as<float>() + (image * s.groups + group) * s.inputs * s.in,
              *end = x.as<float>() + x.size();
  const int64_t channel = group * s.outputs + first;
  float* to = y.as<float>() + (image * s.groups * s.outputs + channel) * s.out;
  for (int64_t c = 0; c < channels; ++c)
    std::fill_n(to + c * s.out, s.out,
                kernels::has_input(call, 2) ? call.inputs[2].as<float>()[channel + c] : 0.f);
  if (s.inputs == 0) return;  // weights without memory
  const LeftMatrix left{call.inputs[1].as<float>() + (group * s.inputs * s.outputs + first) * s.taps, 1,
                        s.outputs * s.taps};
  for (int64_t column = 0; column < s.in; column += Room::kColumns) {
    const int64_t count = std::min(Room::kColumns, s.in - column);
    float* sums = room().plane;
    multiply(left, channels * s.taps, s.inputs, count, nullptr, sums, Room::kColumns,
             [&](int64_t k, int64_t rows, float* into) {
               copy_panels(from + k * s.in + column, s.in, rows, count, end, into);
             });
    for (int64_t c = 0; c < channels; ++c) {
      Odometer tap(w.kernel, {}, 0);
      for (int64_t t = 0; t < s.taps; ++t, tap.next())
        add_tap(w, tap.index(), sums + (c * s.taps + t) * Room::kColumns, column, count, to + c * s.out);
    }
  }
}

}  // namespace

void register_conv_transpose(std::vector<Kernel>& by_op) {
  Kernel& kernel = by_op[static_cast<std::size_t>(Op::kConvTranspose)];
  kernel.grid = transposed_grid, kernel.tile = transposed_tile;
}

}  // namespace ark::vector_kernels
