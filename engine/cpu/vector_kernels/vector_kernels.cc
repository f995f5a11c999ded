#include "engine/cpu/vector_kernels/vector_kernels.h"

#include <algorithm>
#include <cstdint>

#include "base/per_thread.h"

namespace ark::vector_kernels {

void register_all(std::vector<Kernel>& by_op) {
  for (Register* const put :
       {register_matmul, register_conv, register_conv_transpose, register_pointwise, register_rows,
        register_norm, register_pool, register_reduce, register_recurrent})
    put(by_op);
}

bool is_f32(const KernelCall& call) {
  const auto fits = [](const TensorView& view) { return !view.present() || view.dtype == DType::kF32; };
  return std::ranges::all_of(call.inputs, fits) && std::ranges::all_of(call.outputs, fits) &&
         !call.outputs.empty() && call.outputs[0].present() && call.outputs[0].size() > 0;
}

Room::Room() {
  constexpr int64_t kLine = 16, kRight = kColumns / kPanel * kPanelRoom,
                    kPacked = simd::BlockProduct::kPackedRows * kDepth;
  all_.resize(static_cast<std::size_t>(kRight + kPacked + 2 * kPlane + 5 * kLine));
  const auto place = reinterpret_cast<uintptr_t>(all_.data());
  right = all_.data() + (64 - place % 64) % 64 / sizeof(float);
  packed = right + kRight + kLine;
  plane = packed + kPacked;
  flat = plane + kPlane + kLine;
}

Room& room() {
  static PerThread<Room> rooms;
  return rooms.get();
}

void copy_panels(const float* from, int64_t row, int64_t rows, int64_t columns, const float* end, float* to) {
  for (int64_t i = 0; i < rows; ++i, from += row) {
    for (int64_t c = 0; c < columns; c += kPanel)
      copy_run(to + c / kPanel * Room::kPanelRoom + i * kPanel, from + c, std::min(kPanel, columns - c), end);
  }
}

void multiply_in_place(LeftMatrix left, int64_t rows, int64_t k, int64_t columns, const float* right,
                       int64_t right_row, float* out, int64_t out_row, bool opens) {
  constexpr int64_t kShort = 32;  // along k, so that the right matrix' rows are read in turn
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
    product.opens = opens && at == 0;
    vectors().block_product(product);
  }
}

namespace {

constexpr int64_t kFewTiles = 8, kMostRows = 240;  // of one tile
int64_t parts_of(int64_t n, int64_t most) { return (n + most - 1) / most; }

}  // namespace

Cut::Cut(int64_t outer, int64_t rows, int64_t columns)
    : m(rows),
      n(columns),
      row_parts(parts_of(rows, kMostRows)),
      column_parts(parts_of(columns, Room::kColumns)) {
  constexpr int64_t kSmall = int64_t{1}
                             << 19;  // multiply-adds for each of k, that are not worth another thread
  while (outer * parts() < kFewTiles && m / row_parts * (n / column_parts) > kSmall / 256) {
    const int64_t each_rows = m / row_parts, each_columns = n / column_parts;
    if (each_columns >= 128 && each_columns >= each_rows)
      column_parts *= 2;
    else if (each_rows >= 48)
      row_parts *= 2;
    else if (each_columns >= 128)
      column_parts *= 2;
    else
      break;
  }
}

Cut::Part Cut::part(int64_t i) const {
  const int64_t r = i % row_parts, c = i / row_parts, units = (n + 15) / 16;
  const int64_t row = m * r / row_parts, column = units * c / column_parts * 16;
  return {row, m * (r + 1) / row_parts - row, column,
          std::min(n, units * (c + 1) / column_parts * 16) - column};
}

}  // namespace ark::vector_kernels
