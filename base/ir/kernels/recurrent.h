// The tile of recurrent layers for given ways to multiply and to apply functions: plain ones, or those of the machine's
// vectors.
#pragma once

#include "base/ir/kernel.h"

namespace ark::kernels {

// Of f32; null: plain.
struct RecurrentParts {
  // to[i, r] = x[r, i]; rows of x lie `stride` apart, those of `to` `to_stride`.
  void (*transpose)(const float* x, int64_t stride, int64_t rows, int64_t columns, float* to,
                    int64_t to_stride) = nullptr;
  // out[rows, n] += x[rows, k] w[k, n], whose rows lie x_row, w_row and out_row apart. Of w the next multiple of 16
  // columns can be read.
  void (*add_product)(const float* x, int64_t x_row, int64_t rows, int64_t k, const float* w, int64_t w_row,
                      int64_t n, float* out, int64_t out_row) = nullptr;
  // x[i] = op(x[i]) for i < n, of an operator that is_fusible().
  void (*apply)(Op op, float* x, int64_t n, double p, double q) = nullptr;
};
void recurrent_tile(const KernelCall& call, int64_t tile, const RecurrentParts& parts);

}  // namespace ark::kernels
