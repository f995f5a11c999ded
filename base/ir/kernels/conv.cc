// Convolutions by their definition: one (image, output channel) a tile, taps as strided row updates.
#include "base/ir/kernels/common.h"
#include "base/ir/kernels/window.h"
#include "base/ir/keys.h"

namespace ark::kernels {

Window window_of(const KernelCall& call, Dims kernel) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const Attributes& a = *call.attributes;
  if (x.rank < 3 || y.rank != x.rank)
    misfit("a window operator wants [N, C, spatial...], not " + dims_text(x.shape()));
  Window w;
  w.spatial = static_cast<std::size_t>(x.rank) - 2;
  w.in.assign(x.dims.begin() + 2, x.dims.begin() + x.rank);
  w.out.assign(y.dims.begin() + 2, y.dims.begin() + y.rank);
  w.kernel = std::move(kernel);
  w.stride = a.get_or(key::kStrides, Dims(w.spatial, 1));
  w.dilation = a.get_or(key::kDilations, Dims(w.spatial, 1));
  Dims pads = a.get_or(key::kPads, Dims(2 * w.spatial, 0));
  const std::string automatic = a.get_or(key::kAutoPad, "NOTSET");
  if (w.kernel.size() != w.spatial || w.stride.size() != w.spatial || w.dilation.size() != w.spatial ||
      pads.size() != 2 * w.spatial)
    misfit("kernel, strides, dilations or pads do not fit " + dims_text(x.shape()));
  for (std::size_t i = 0; i < w.spatial; ++i) {
    if (w.stride[i] < 1 || w.dilation[i] < 1 || w.kernel[i] < 1)
      misfit("kernel, strides and dilations must be positive");
    const int64_t extent = (w.kernel[i] - 1) * w.dilation[i] + 1;
    if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
      const int64_t total = std::max<int64_t>(0, (w.out[i] - 1) * w.stride[i] + extent - w.in[i]);
      pads[i] = automatic == "SAME_UPPER" ? total / 2 : total - total / 2;
      pads[i + w.spatial] = total - pads[i];
    } else if (automatic == "VALID") {
      pads[i] = pads[i + w.spatial] = 0;
    }
    w.begin.push_back(pads[i]);
    w.end.push_back(pads[i + w.spatial]);
  }
  return w;
}

Window transposed_window_of(const KernelCall& call) {
  const TensorView &x = call.inputs[0], &weights = call.inputs[1], &y = call.outputs[0];
  const Attributes& a = *call.attributes;
  Window w;
  w.spatial = static_cast<std::size_t>(x.rank) - 2;
  w.stride = a.get_or(key::kStrides, Dims(w.spatial, 1));
  w.dilation = a.get_or(key::kDilations, Dims(w.spatial, 1));
  w.begin = a.get_or(key::kPads, Dims(2 * w.spatial, 0));
  const std::string automatic = a.get_or(key::kAutoPad, "NOTSET");
  const Dims extra = a.get_or(key::kOutputPadding, Dims(w.spatial, 0));
  w.in.assign(x.dims.begin() + 2, x.dims.begin() + x.rank);
  w.kernel.assign(weights.dims.begin() + 2, weights.dims.begin() + weights.rank);
  w.out.assign(y.dims.begin() + 2, y.dims.begin() + y.rank);
  if (automatic.starts_with("SAME") || a.has(key::kOutputShape))
    for (std::size_t i = 0; i < w.spatial; ++i) {
      // In checked arithmetic: no rule has multiplied the file's numbers where the output's size was given.
      const Expr reach =
          (Expr(w.in[i]) - 1) * Expr(w.stride[i]) + (Expr(w.kernel[i]) - 1) * Expr(w.dilation[i]) + 1;
      const int64_t total = *(reach + Expr(extra[i]) - Expr(w.out[i])).constant();
      const int64_t cut = std::max<int64_t>(total, 0);  // else zeros behind what the kernel reaches
      w.begin[i] = automatic == "SAME_UPPER" ? cut / 2 : cut - cut / 2;
    }
  return w;
}

namespace {

Dims kernel_of(const TensorView& weights) {
  return {weights.dims.begin() + 2, weights.dims.begin() + weights.rank};
}

int64_t conv_grid(const KernelCall& call) { return call.outputs[0].dims[0] * call.outputs[0].dims[1]; }

// sum[o] += weight * plane[where the tap at `tap` reads for o], for taps inside the plane.
template <typename C>
void add_tap(const Window& w, const Index& tap, C weight, const std::vector<C>& plane, std::vector<C>& sum) {
  const std::size_t last = w.spatial - 1;
  const Index in_strides = strides_of(w.in);
  const Dims outer(w.out.begin(), w.out.end() - 1);
  const int64_t rows = product(outer);
  Odometer row(outer, {}, 0);
  for (int64_t r = 0; r < rows; ++r, row.next()) {
    int64_t base = 0;
    bool inside = true;
    for (std::size_t a = 0; a < last; ++a) {
      const int64_t at = w.position(a, row.index()[a], tap[a]);
      inside = inside && at >= 0 && at < w.in[a];
      base += at * in_strides[a];
    }
    if (!inside) continue;
    for (int64_t o = 0; o < w.out[last]; ++o) {
      const int64_t at = w.position(last, o, tap[last]);
      if (at >= 0 && at < w.in[last]) sum[r * w.out[last] + o] += weight * plane[base + at];
    }
  }
}

// Zero points are subtracted from x and the weights (ConvInteger); `start` is the bias.
template <typename C>
void convolve(const KernelCall& call, int64_t tile, C x_zero, C weight_zero, C start) {
  const TensorView &x = call.inputs[0], &weights = call.inputs[1], &y = call.outputs[0];
  const Window w = window_of(call, kernel_of(weights));
  const int64_t group = call.attributes->get_or(key::kGroup, 1), outputs = weights.dims[0],
                inputs = weights.dims[1];
  const int64_t image = tile / outputs, channel = tile % outputs,
                first_input = channel / (outputs / group) * inputs;
  const int64_t in_size = product(w.in), out_size = product(w.out), taps = product(w.kernel);
  std::vector<C> sum(static_cast<std::size_t>(out_size), start), plane(static_cast<std::size_t>(in_size));
  for (int64_t c = 0; c < inputs && out_size; ++c) {
    load(x, (image * x.dims[1] + first_input + c) * in_size, in_size, plane.data());
    for (C& v : plane) v -= x_zero;
    Odometer tap(w.kernel, {}, 0);
    for (int64_t t = 0; t < taps; ++t, tap.next())
      add_tap<C>(w, tap.index(), load_one<C>(weights, (channel * inputs + c) * taps + t) - weight_zero, plane,
                 sum);
  }
  store(y, tile * out_size, out_size, sum.data());
}

void conv_tile(const KernelCall& call, int64_t tile) {
  with_compute_type(call.outputs[0].dtype, [&](auto type) {
    using C = decltype(type);
    const int64_t channel = tile % call.outputs[0].dims[1];
    convolve<C>(call, tile, 0, 0, has_input(call, 2) ? load_one<C>(call.inputs[2], channel) : C{0});
  });
}

// (x, weights, x_zero?, weight_zero? scalar or one a channel) -> i32
void integer_tile(const KernelCall& call, int64_t tile) {
  const int64_t channels = call.outputs[0].dims[1], channel = tile % channels;
  const auto zero = [&](std::size_t input) {
    if (!has_input(call, input)) return int64_t{0};
    const int64_t count = call.inputs[input].size();
    if (count != 1 && (input == 2 || count != channels))  // again: not every driver asks for shapes
      misfit("has " + std::to_string(count) + " zero points for its " + (input == 2 ? "input" : "weights"));
    return load_one<int64_t>(call.inputs[input], count == 1 ? 0 : channel);
  };
  convolve<int64_t>(call, tile, zero(2), zero(3), 0);
}

// ConvTranspose: out[o] += x[i] * w where o = i * stride + tap * dilation - begin.
void transpose_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &weights = call.inputs[1], &y = call.outputs[0];
  const Attributes& a = *call.attributes;
  const Window w = transposed_window_of(call);
  const std::size_t spatial = w.spatial;
  const Dims &strides = w.stride, &dilations = w.dilation, &begin = w.begin, &in = w.in, &kernel = w.kernel,
             &out = w.out;
  const int64_t group = a.get_or(key::kGroup, 1), per_group = weights.dims[1], channels = y.dims[1];
  const int64_t image = tile / channels, channel = tile % channels, inputs = x.dims[1] / group,
                g = channel / per_group;
  const int64_t in_size = product(in), taps = product(kernel), out_size = product(out);
  std::vector<double> sum(static_cast<std::size_t>(out_size),
                          has_input(call, 2) ? load_one<double>(call.inputs[2], channel) : 0);
  std::vector<double> plane(static_cast<std::size_t>(in_size));
  const Index out_strides = strides_of(out);
  const std::size_t last = spatial - 1;
  const Dims rows(in.begin(), in.end() - 1);
  const int64_t stride = strides[last], width = in[last];
  for (int64_t c = g * inputs; c < (g + 1) * inputs; ++c) {
    load(x, (image * x.dims[1] + c) * in_size, in_size, plane.data());
    Odometer tap(kernel, {}, 0);
    for (int64_t t = 0; t < taps; ++t, tap.next()) {
      const double weight = load_one<double>(weights, (c * per_group + channel % per_group) * taps + t);
      // Of each row, the elements that this tap puts inside the output.
      const int64_t shift = tap.index()[last] * dilations[last] - begin[last];
      const int64_t from = shift < 0 ? (-shift + stride - 1) / stride : 0,
                    to = shift < out[last] ? std::min(width, (out[last] - 1 - shift) / stride + 1) : 0;
      Odometer row(rows, {}, 0);
      for (int64_t r = 0; r * width < in_size; ++r, row.next()) {
        int64_t start = shift;
        bool inside = true;
        for (std::size_t k = 0; k < last; ++k) {
          const int64_t o = row.index()[k] * strides[k] + tap.index()[k] * dilations[k] - begin[k];
          inside = inside && o >= 0 && o < out[k];
          start += o * out_strides[k];
        }
        if (!inside) continue;
        const double* values = plane.data() + r * width;
        for (int64_t i = from; i < to; ++i) sum[start + i * stride] += values[i] * weight;
      }
    }
  }
  store(y, tile * out_size, out_size, sum.data());
}

}  // namespace

void register_conv(std::vector<Kernel>& into) {
  into.push_back({Op::kConv, by_rule, conv_grid, conv_tile});
  into.push_back({Op::kConvInteger, by_rule, conv_grid, integer_tile});
  into.push_back({Op::kConvTranspose, by_rule, conv_grid, transpose_tile});
}

}  // namespace ark::kernels
