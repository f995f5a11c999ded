// What MatMul multiplies, for the kernels that do.
#pragma once

#include "base/ir/kernels/common.h"

namespace ark::kernels {

// The operands as [batch..., M, K] x [batch..., K, N], whatever their storage order.
struct Product {
  int64_t m, k, n;
  Dims batch;                      // broadcast batch dims
  Index a_strides{}, b_strides{};  // of the batch dims, in elements
  int64_t a_row, a_column, b_row, b_column;
  bool a_vector, b_vector;
};
// Throws misfit.
Product product_of(const KernelCall& call);

}  // namespace ark::kernels
