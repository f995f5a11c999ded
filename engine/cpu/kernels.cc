#include "engine/cpu/kernels.h"

#include "base/ir/kernels/integer_product.h"
#include "engine/cpu/vector_kernels/vector_kernels.h"

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

std::vector<Kernel> kernels_of_machine() {
  std::vector<Kernel> by_op(static_cast<std::size_t>(Op::kCount));
  for (std::size_t i = 0; i < by_op.size(); ++i)
    if (const Kernel* kernel = find_kernel(static_cast<Op>(i))) by_op[i] = *kernel;
  by_op[static_cast<std::size_t>(Op::kMatMulInteger)].tile = [](const KernelCall& call, int64_t tile) {
    kernels::integer_product_tile(call, tile, simd_panel_product);
  };
  vector_kernels::register_all(by_op);
  return by_op;
}

}  // namespace

const Kernel* find_cpu_kernel(Op op) {
  static const std::vector<Kernel> kernels = kernels_of_machine();
  const Kernel& kernel = kernels[static_cast<std::size_t>(op)];
  const Kernel* const portable = find_kernel(op);
  return portable && portable->tile != kernel.tile ? &kernel : portable;
}

}  // namespace ark
