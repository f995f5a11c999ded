// A matrix of f32 turned, four by four. In an unnamed namespace as all that is compiled for several instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

namespace ark::simd {
namespace {

// to[i, r] = x[r, i]; rows of x lie `stride` apart, those of `to` `to_stride`.
inline void transpose(const float* x, int64_t stride, int64_t rows, int64_t columns, float* to,
                      int64_t to_stride) {
  using Four [[gnu::vector_size(16)]] = float;
  const int64_t whole_rows = rows & ~int64_t{3}, whole = columns & ~int64_t{3};
  for (int64_t r = 0; r < whole_rows; r += 4) {
    for (int64_t i = 0; i < whole; i += 4) {
      Four in[4];
      for (int j = 0; j < 4; ++j) std::memcpy(&in[j], x + (r + j) * stride + i, sizeof in[j]);
      const Four low02 = __builtin_shufflevector(in[0], in[2], 0, 4, 1, 5),
                 low13 = __builtin_shufflevector(in[1], in[3], 0, 4, 1, 5),
                 high02 = __builtin_shufflevector(in[0], in[2], 2, 6, 3, 7),
                 high13 = __builtin_shufflevector(in[1], in[3], 2, 6, 3, 7);
      const Four out[4] = {__builtin_shufflevector(low02, low13, 0, 4, 1, 5),
                           __builtin_shufflevector(low02, low13, 2, 6, 3, 7),
                           __builtin_shufflevector(high02, high13, 0, 4, 1, 5),
                           __builtin_shufflevector(high02, high13, 2, 6, 3, 7)};
      for (int j = 0; j < 4; ++j) std::memcpy(to + (i + j) * to_stride + r, &out[j], sizeof out[j]);
    }
    for (int64_t i = whole; i < columns; ++i) {
      for (int64_t j = r; j < r + 4; ++j) to[i * to_stride + j] = x[j * stride + i];
    }
  }
  for (int64_t r = whole_rows; r < rows; ++r) {
    for (int64_t i = 0; i < columns; ++i) to[i * to_stride + r] = x[r * stride + i];
  }
}

}  // namespace
}  // namespace ark::simd
