// Sliding windows of Conv and Pool: sizes, strides, dilations, pads per spatial axis.
#pragma once

#include "base/ir/kernels/common.h"

namespace ark::kernels {

struct Window {
  std::size_t spatial = 0;  // number of spatial axes
  Dims in, out, kernel, stride, dilation, begin, end;

  // First and last kernel taps (exclusive) of axis `a` at output position `o` that fall inside the input.
  int64_t position(std::size_t a, int64_t o, int64_t tap) const {
    return o * stride[a] - begin[a] + tap * dilation[a];
  }
};

// The taps of one axis that read the image, [begin, end), and how many read the image or the padding: a window takes no
// longer than what it sees of the image, however large the file says it is.
struct TapRange {
  int64_t begin, end, padded;
  TapRange(const Window& w, std::size_t axis, int64_t o) {
    const int64_t first = w.position(axis, o, 0), dilation = w.dilation[axis], taps = w.kernel[axis];
    const auto below = [&](int64_t limit) {  // taps that read before it
      return limit <= first ? 0 : std::min(taps, (limit - first - 1) / dilation + 1);
    };
    begin = below(0), end = std::max(begin, below(w.in[axis])), padded = below(w.in[axis] + w.end[axis]);
  }
};

// From ONNX's attributes (kernel_shape may come from the weights) and the output's sizes. Resolves auto_pad. Throws
// misfit.
Window window_of(const KernelCall& call, Dims kernel);
// The same of ConvTranspose, whose taps write: out[i * stride + tap * dilation - begin]. Without `end`.
Window transposed_window_of(const KernelCall& call);

}  // namespace ark::kernels
