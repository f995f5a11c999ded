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

// From ONNX's attributes (kernel_shape may come from the weights) and the output's sizes. Resolves auto_pad. Throws
// misfit.
Window window_of(const KernelCall& call, Dims kernel);

}  // namespace ark::kernels
