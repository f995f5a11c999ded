#include "engine/cpu/vector_kernels/vector_kernels.h"

#include <algorithm>
#include <cstdint>

#include "base/per_thread.h"

namespace ark::vector_kernels {

bool is_f32(const KernelCall& call) {
  const auto fits = [](const TensorView& view) { return !view.present() || view.dtype == DType::kF32; };
  return std::ranges::all_of(call.inputs, fits) && std::ranges::all_of(call.outputs, fits) &&
         !call.outputs.empty() && call.outputs[0].present() && call.outputs[0].size() > 0;
}

Room::Room() {
  constexpr int64_t kLine = 16, kPacked = simd::BlockProduct::kPackedRows * kDepth;
  all_.resize(static_cast<std::size_t>(kDepth * kColumns + kPacked + 2 * kPlane + 5 * kLine));
  const auto place = reinterpret_cast<uintptr_t>(all_.data());
  right = all_.data() + (64 - place % 64) % 64 / sizeof(float);
  packed = right + kDepth * kColumns + kLine;
  plane = packed + kPacked;
  flat = plane + kPlane + kLine;
}

Room& room() {
  static PerThread<Room> rooms;
  return rooms.get();
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
