// MatMulInteger's tile for a given product of f32 panels: the plain one, or one that knows the machine's vectors.
#pragma once

#include "base/ir/kernel.h"

namespace ark::kernels {

inline constexpr int64_t kIntegerPanel = 64;  // columns of one panel

// sums[rows, kIntegerPanel] = x[rows, k] w[k, kIntegerPanel]. The elements are integers so small that every sum is
// exact, in whatever order it is added up. `packed` has room for rows * k floats.
using PanelProduct = void (*)(const float* x, const float* w, int64_t rows, int32_t k, float* packed,
                              float* sums);
void integer_product_tile(const KernelCall& call, int64_t tile, PanelProduct product);

}  // namespace ark::kernels
