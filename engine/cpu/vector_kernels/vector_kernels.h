// Kernels of plain graphs over this machine's vectors, each in the place of a portable one (base/ir/kernels), which it
// leaves everything to that is not f32.
#pragma once

#include <algorithm>
#include <vector>

#include "base/ir/kernel.h"
#include "base/ir/pointwise_host.h"
#include "engine/cpu/simd/table.h"

namespace ark::vector_kernels {

// What each file of this folder puts in the place of portable kernels; `by_op` has them all by number of the operator.
using Register = void(std::vector<Kernel>& by_op);
Register register_matmul, register_conv, register_conv_transpose, register_pointwise, register_rows,
    register_norm, register_pool, register_reduce, register_recurrent;
Register register_all;

inline const simd::Table& vectors() {
  static const simd::Table& table = simd::table_of(best_isa());
  return table;
}

// out[i] = op(a[i], b[i]) for i < n, of an operator that is_fusible(); b: of binary ones only; out may be a or b.
void run_pointwise(Op op, const float* a, const float* b, const pointwise::Parameters& of, float* out,
                   int64_t n);

// Whether all operands that are there are f32, and the first output has elements.
bool is_f32(const KernelCall& call);

// One thread's room, the same for all sizes.
struct Room {
  // Of products: rows of k of the right matrix and of columns at once.
  static constexpr int64_t kDepth = 256, kColumns = 256;
  static constexpr int64_t kPanelRoom = kDepth * simd::BlockProduct::kPanel + 16;
  static constexpr int64_t kPlane = 64 << 10;  // of shifted sums, and what they come to
  Room();
  float* right;   // panels for kColumns
  float* packed;  // as of BlockProduct
  float* plane;   // kPlane and a vector more
  float* flat;    // the same

 private:
  std::vector<float> all_;
};
Room& room();

// How a product [m, n] of which there are `outer` is cut into tiles: into equal parts, and into some tiles at least, so
// that a few threads are all busy. By sizes alone.
struct Cut {
  int64_t m, n, row_parts, column_parts;
  Cut(int64_t outer, int64_t rows, int64_t columns);
  int64_t parts() const { return row_parts * column_parts; }
  struct Part {
    int64_t row, rows, column, columns;
  };
  Part part(int64_t i) const;  // its columns begin at a multiple of 16
};

// out[rows, columns] = left[rows, k] right[k, columns] + bias of each row (null: none). `fill(k, count, to)` puts rows
// [k, k + count) of `right` into the panels at `to`; it may write a vector past the end of each row before it fills
// those that follow.
struct LeftMatrix {
  const float* data;
  int64_t row, column;  // how far apart they are
};
constexpr int64_t kPanel = simd::BlockProduct::kPanel;
// Asks for rows that are read soon, while something else is done: they are too short to be foreseen.
inline void prefetch_rows(const float* from, int64_t row, int64_t rows, int64_t columns) {
  constexpr int64_t kLine = 16;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; c += kLine) __builtin_prefetch(from + r * row + c, 0, 2);
}
// Each row its bias, or 0.
inline void fill_rows(int64_t rows, int64_t columns, const float* bias, float* out, int64_t out_row) {
  for (int64_t r = 0; r < rows; ++r) std::fill_n(out + r * out_row, columns, bias ? bias[r] : 0.f);
}
template <class Fill>
void multiply(LeftMatrix left, int64_t rows, int64_t k, int64_t columns, const float* bias, float* out,
              int64_t out_row, Fill fill) {
  if (k == 0) return fill_rows(rows, columns, bias, out, out_row);
  simd::BlockProduct product;
  product.b = room().right, product.b_panel = Room::kPanelRoom;
  product.a_row = left.row, product.a_column = left.column;
  product.m = rows, product.n = columns;
  product.out = out, product.out_row = out_row;
  product.packed = room().packed;
  for (int64_t at = 0; at < k;) {
    product.k = std::min(Room::kDepth, k - at);
    if (left.column == 1) prefetch_rows(left.data + at, left.row, rows, product.k);
    fill(at, product.k, room().right);
    product.a = left.data + at * left.column;
    product.opens = at == 0;
    at += product.k;
    product.row_bias = at < k ? nullptr : bias;
    vectors().block_product(product);
  }
}

// multiply() of a few rows, by a right matrix that is read where it lies: of its rows the next multiple of 16 columns
// can be read. Without `opens` the products are added to what out holds.
void multiply_in_place(LeftMatrix left, int64_t rows, int64_t k, int64_t columns, const float* right,
                       int64_t right_row, float* out, int64_t out_row, bool opens);

// Copies n floats in whole vectors where neither end minds: up to 15 more are written, and read if `end`, that of what
// can be read, is not before them.
inline void copy_run(float* to, const float* from, int64_t n, const float* end) {
  if (from + (n + 15) / 16 * 16 > end) {
    std::copy_n(from, n, to);
    return;
  }
  for (int64_t i = 0; i < n; i += 16) __builtin_memcpy(to + i, from + i, 16 * sizeof(float));
}

// Rows of `columns` numbers, `row` apart, as panels; of them memory can be read up to `end`.
void copy_panels(const float* from, int64_t row, int64_t rows, int64_t columns, const float* end, float* to);

}  // namespace ark::vector_kernels
