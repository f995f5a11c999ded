// Products of matrices, each tile some rows and columns of one of them.
#include "base/ir/kernels/matmul.h"

#include "base/ir/kernels/common.h"
#include "engine/cpu/simd/transpose.h"
#include "engine/cpu/vector_kernels/vector_kernels.h"

namespace ark::vector_kernels {
namespace {

using kernels::Product, kernels::product, kernels::product_of;

// So few rows read the right matrix where it lies: they are done with it at once. Kept short along k, so that its rows
// are read in turn.
constexpr int64_t kFewRows = 12, kShort = 32;

void few_rows(LeftMatrix left, int64_t rows, int64_t k, int64_t columns, const float* right,
              int64_t right_row, float* out, int64_t out_row) {
  simd::BlockProduct product;
  product.a_row = left.row, product.a_column = left.column;
  product.b_row = right_row;
  product.m = rows, product.n = columns;
  product.out = out, product.out_row = out_row;
  product.packed = room().packed;
  for (int64_t at = 0; at < k; at += kShort) {
    product.a = left.data + at * left.column;
    product.b = right + at * right_row;
    product.k = std::min(kShort, k - at);
    product.opens = at == 0;
    vectors().block_product(product);
  }
}

int64_t matmul_grid(const KernelCall& call) {
  if (!is_f32(call)) return find_kernel(Op::kMatMul)->grid(call);
  const Product p = product_of(call);
  const int64_t outer = product(p.batch);
  return outer * Cut(outer, p.m, p.n).parts();
}

void matmul_tile(const KernelCall& call, int64_t tile) {
  if (!is_f32(call)) return find_kernel(Op::kMatMul)->tile(call, tile);
  const Product p = product_of(call);
  const Cut cut(product(p.batch), p.m, p.n);
  const Cut::Part part = cut.part(tile % cut.parts());
  const int64_t batch = tile / cut.parts();
  const kernels::Odometer at(p.batch, {p.a_strides, p.b_strides}, batch);
  const TensorView &a = call.inputs[0], &b = call.inputs[1];
  const LeftMatrix left{a.as<float>() + at.offset(0) + part.row * p.a_row, p.a_row, p.a_column};
  const float *right = b.as<float>() + at.offset(1) + part.column * p.b_column,
              *end = b.as<float>() + b.size();
  float* out = call.outputs[0].as<float>() + (batch * p.m + part.row) * p.n + part.column;
  int64_t done = 0;  // columns
  if (part.rows <= kFewRows && p.b_column == 1 && p.k > 0) {
    done = part.columns / 16 * 16;
    if (done) few_rows(left, part.rows, p.k, done, right, p.b_row, out, p.n);
  }
  const int64_t columns = part.columns - done;
  if (columns == 0) return;
  right += done * p.b_column;
  multiply(left, part.rows, p.k, columns, nullptr, out + done, p.n, [&](int64_t k, int64_t count, float* to) {
    const float* from = right + k * p.b_row;
    const int64_t row = right_row(columns);
    if (p.b_column != 1) return simd::transpose(from, p.b_column, columns, count, to, row);
    for (int64_t i = 0; i < count; ++i) copy_run(to + i * row, from + i * p.b_row, columns, end);
  });
}

}  // namespace

void register_matmul(std::vector<Kernel>& by_op) {
  Kernel& kernel = by_op[static_cast<std::size_t>(Op::kMatMul)];
  kernel.grid = matmul_grid, kernel.tile = matmul_tile;
}

}  // namespace ark::vector_kernels
