#include "engine/cpu/kernels.h"

#include "base/ir/kernels/integer_product.h"
#include "engine/cpu/simd/table.h"

namespace ark {
namespace {

void simd_panel_product(const float* x, const float* w, int64_t rows, int32_t k, float* packed, float* sums) {
  const int32_t slabs[] = {0, k};
  simd::MatMul product;
  product.x = x;
  product.m = product.last_row = rows;
  product.k = k;
  product.n = product.panel = kernels::kIntegerPanel;
  product.w = reinterpret_cast<const std::byte*>(w);
  product.slabs = slabs;
  product.out = sums;
  product.last_panel = 1;
  product.packed = packed;
  simd::table_of(best_isa()).matmul(product);
}

}  // namespace

const Kernel* find_cpu_kernel(Op op) {
  if (op != Op::kMatMulInteger) return find_kernel(op);
  static const Kernel product = [] {
    Kernel kernel = *find_kernel(Op::kMatMulInteger);
    kernel.tile = [](const KernelCall& call, int64_t tile) {
      kernels::integer_product_tile(call, tile, simd_panel_product);
    };
    return kernel;
  }();
  return &product;
}

}  // namespace ark
