// Operators that put parts back into an image: MaxUnpool and Col2Im.
#include "base/ir/kernels/common.h"
#include "base/ir/keys.h"

namespace ark::kernels {
namespace {

// The sizes that the indices of MaxUnpool count in: those that pooling would have made the input from.
Dims pooled_from(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const Attributes& a = *call.attributes;
  const Dims &kernel = a.get(key::kKernelShape), &strides = a.get(key::kStrides), &pads = a.get(key::kPads);
  Dims dims{x.dims[0], x.dims[1]};
  for (std::size_t i = 0; i < kernel.size(); ++i)
    dims.push_back((x.dims[2 + i] - 1) * strides[i] - pads[i] - pads[i + kernel.size()] + kernel[i]);
  return dims;
}

std::vector<OutputType> unpool_shapes(const KernelCall& call) {
  std::vector<OutputType> types = by_rule(call);
  const Dims from = pooled_from(call);
  for (std::size_t i = 0; i < from.size(); ++i)
    if (from[i] < 0 || from[i] > types[0].dims[i])
      misfit("MaxUnpool to " + dims_text(types[0].dims) + ", which does not hold " + dims_text(from));
  const TensorView& indices = call.inputs[1];
  const int64_t n = product(from);
  if (indices.data)
    for (int64_t i = 0; i < indices.size(); ++i)
      if (const int64_t at = load_one<int64_t>(indices, i); at < 0 || at >= n)
        misfit("index " + std::to_string(at) + " is out of range for " + dims_text(from));
  return types;
}

void unpool_tile(const KernelCall& call, int64_t) {
  const TensorView &x = call.inputs[0], &indices = call.inputs[1], &y = call.outputs[0];
  const int64_t size = element_bytes(y);
  std::fill(y.data, y.data + y.size() * size, std::byte{});
  const Dims from = pooled_from(call);
  const Index strides = strides_of(y.shape());
  for (int64_t i = 0; i < x.size(); ++i) {
    int64_t rest = load_one<int64_t>(indices, i), to = 0;
    for (std::size_t a = from.size(); a-- > 0; rest /= from[a]) to += rest % from[a] * strides[a];
    copy_element(y.data + to * size, x.data + i * size, size);
  }
}

int64_t fold_grid(const KernelCall& call) { return call.outputs[0].dims[0] * call.outputs[0].dims[1]; }

// One channel of one image.
void fold_tile(const KernelCall& call, int64_t tile) {
  const TensorView &x = call.inputs[0], &y = call.outputs[0];
  const Attributes& a = *call.attributes;
  const Dims block = ints(call, key::kKernelShape, 2), &strides = a.get(key::kStrides),
             &dilations = a.get(key::kDilations), &pads = a.get(key::kPads);
  const auto image = y.shape().subspan(2);
  Dims counts;  // of blocks an axis
  for (std::size_t i = 0; i < block.size(); ++i)
    counts.push_back(
        (image[i] + pads[i] + pads[i + block.size()] - dilations[i] * (block[i] - 1) - 1) / strides[i] + 1);
  const int64_t taps = product(block), places = product(counts), plane = product(image);
  const Index own = strides_of(image);
  with_compute_type(y.dtype, [&](auto type) {
    using C = decltype(type);
    std::vector<C> sum(static_cast<std::size_t>(plane));
    Odometer tap(block, {}, 0);
    for (int64_t t = 0; t < taps; ++t, tap.next()) {
      Odometer place(counts, {}, 0);
      for (int64_t p = 0; p < places; ++p, place.next()) {
        int64_t to = 0;
        bool inside = true;
        for (std::size_t i = 0; i < block.size(); ++i) {
          const int64_t at = place.index()[i] * strides[i] - pads[i] + tap.index()[i] * dilations[i];
          inside = inside && at >= 0 && at < image[i];
          to += at * own[i];
        }
        if (inside) sum[to] += load_one<C>(x, (tile * taps + t) * places + p);
      }
    }
    store(y, tile * plane, plane, sum.data());
  });
}

}  // namespace

void register_unpool(std::vector<Kernel>& into) {
  into.push_back({Op::kMaxUnpool, unpool_shapes, grid_one, unpool_tile});
  into.push_back({Op::kCol2Im, by_rule, fold_grid, fold_tile});
}

}  // namespace ark::kernels
