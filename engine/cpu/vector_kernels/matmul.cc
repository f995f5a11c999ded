// Products of matrices, each tile some rows and columns of one of them.
#include "base/ir/kernels/matmul.h"

#include <algorithm>

#include "base/ir/kernels/common.h"
#include "engine/cpu/simd/transpose.h"
#include "engine/cpu/vector_kernels/vector_kernels.h"

namespace ark::vector_kernels {
namespace {

using kernels::Product, kernels::product, kernels::product_of;

// So few rows read the right matrix where it lies: they are done with it at once.
constexpr int64_t kFewRows = 12;

// Of matrices that meet the same right one, the rows of all: it is packed for more of them.
Product joined_product(const KernelCall& call) {
  Product p = product_of(call);
  const bool is_shared =
      std::all_of(p.b_strides.begin(), p.b_strides.begin() + static_cast<std::ptrdiff_t>(p.batch.size()),
                  [](int64_t stride) { return stride == 0; });
  const int64_t matrices = product(p.batch);
  // A turned matrix of one row has columns that lie side by side, too.
  if (is_shared && p.a_column == 1 && p.a_row == p.k && call.inputs[0].size() == matrices * p.m * p.k) {
    p.m *= matrices;
    p.batch.clear();
  }
  return p;
}

int64_t matmul_grid(const KernelCall& call) {
  if (!is_f32(call)) return find_kernel(Op::kMatMul)->grid(call);
  const Product p = joined_product(call);
  const int64_t outer = product(p.batch);
  return outer * Cut(outer, p.m, p.n).parts();
}

void matmul_tile(const KernelCall& call, int64_t tile) {
  if (!is_f32(call)) return find_kernel(Op::kMatMul)->tile(call, tile);
  const Product p = joined_product(call);
  const Cut cut(product(p.batch), p.m, p.n);
  const Cut::Part part = cut.part(tile % cut.parts());
  const int64_t batch = tile / cut.parts();
  const kernels::Odometer at(p.batch, {p.a_strides, p.b_strides}, batch);
  const TensorView &a = call.inputs[0], &b = call.inputs[1];
  float* out = call.outputs[0].as<float>() + (batch * p.m + part.row) * p.n + part.column;
  if (p.k == 0) return fill_rows(part.rows, part.columns, nullptr, out, p.n);  // operands without memory
  const LeftMatrix left{a.as<float>() + at.offset(0) + part.row * p.a_row, p.a_row, p.a_column};
  const float *right = b.as<float>() + at.offset(1) + part.column * p.b_column,
              *end = b.as<float>() + b.size();
  int64_t done = 0;  // columns
  if (part.rows <= kFewRows && p.b_column == 1) {
    done = part.columns / 16 * 16;
    if (done) multiply_in_place(left, part.rows, p.k, done, right, p.b_row, out, p.n, true);
  }
  const int64_t columns = part.columns - done;
  if (columns == 0) return;
  right += done * p.b_column;
  multiply(left, part.rows, p.k, columns, nullptr, out + done, p.n, [&](int64_t k, int64_t count, float* to) {
    const float* from = right + k * p.b_row;
    if (p.b_column == 1) return copy_panels(from, p.b_row, count, columns, end, to);
    // In squares, whose lines all stay in the first-level cache: rows of a panel share few of its sets.
    for (int64_t c = 0; c < columns; c += kPanel, to += Room::kPanelRoom) {
      const int64_t width = std::min(kPanel, columns - c);
      const float* panel = from + c * p.b_column;
      for (int64_t i = 0; i < count; i += kPanel) {
        const int64_t depth = std::min(kPanel, count - i), next = std::min(kPanel, p.k - k - i - depth);
        if (next > 0) prefetch_rows(panel + i + depth, p.b_column, width, next);
        simd::transpose(panel + i, p.b_column, width, depth, to + i * kPanel, kPanel);
      }
    }
  });
}

}  // namespace

void register_matmul(std::vector<Kernel>& by_op) {
  Kernel& kernel = by_op[static_cast<std::size_t>(Op::kMatMul)];
  kernel.grid = matmul_grid, kernel.tile = matmul_tile;
}

}  // namespace ark::vector_kernels
