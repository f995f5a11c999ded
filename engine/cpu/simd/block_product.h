// Products of blocks of matrices of any strides, and sums of shifted rows: what plain graphs spend their time in
// (engine/cpu/vector_kernels). Per output one multiply-add chain in ascending k, which goes on from block to block
// through the output: how a caller cuts m, n and k changes no bit.
#pragma once

#include <algorithm>

#include "engine/cpu/simd/matmul.h"
#include "engine/cpu/simd/table.h"
#include "engine/program/weight_codec.h"

namespace ark::simd {
namespace {

// `count` rows of `a` from `row` on as [k][count].
inline void pack_block(const BlockProduct& a, int64_t row, int64_t count, float* packed) {
  const float* from = a.a + row * a.a_row;
  if (a.a_column == 1) return pack_rows(from, a.a_row, count, a.k, packed);
  for (int64_t k = 0; k < a.k; ++k) {
    for (int64_t r = 0; r < count; ++r) packed[k * count + r] = from[r * a.a_row + k * a.a_column];
  }
}

// One stripe of columns of some blocks of rows.
template <class T>
void multiply_columns(const BlockProduct& a, const Block* blocks, int count, int64_t column) {
  alignas(64) float sums[kGroup][T::kMaxRows][kStripe];
  const int width = static_cast<int>(std::min<int64_t>(kStripe, a.n - column));
  const auto for_sums = [&](auto f) {  // f(the vector's place, row, column, lanes)
    for (int b = 0; b < count; ++b) {
      for (int r = 0; r < blocks[b].rows; ++r) {
        for (int c = 0; c < width; c += 16)
          f(sums[b][r] + c, blocks[b].row + r, column + c, std::min(16, width - c));
      }
    }
  };
  if (!a.opens)
    for_sums([&](float* sum, int64_t r, int64_t c, int lanes) {
      const float* from = a.out + r * a.out_row + c;
      T::store(sum, lanes == 16 ? T::load(from) : T::load_partial(from, lanes));
    });
  Piece<F32Weights> piece{
      a.b + column / kStripe * a.b_panel, a.b_row, 0, 0, (width + 15) / 16 * 16, a.opens, false};
  while (piece.first < a.k) {
    piece.count = std::min(kPiece, a.k - piece.first);
    for (int b = 0; b < count; ++b) multiply_block<T, F32Weights>(blocks[b], piece, sums[b]);
    piece.first += piece.count;
    piece.w += piece.count * a.b_row;
    piece.opens = false;
  }
  for_sums([&](const float* sum, int64_t r, int64_t c, int lanes) {
    typename T::V v = T::load(sum);
    if (a.row_bias) v = T::add(v, T::set(a.row_bias[r]));
    float* to = a.out + r * a.out_row + c;
    if (lanes == 16) {
      T::store(to, v);
    } else {
      T::store_partial(to, v, lanes);
    }
  });
}

template <class T>
void block_product(const BlockProduct& a) {
  constexpr int64_t kTogether = kGroup * T::kMaxRows;
  static_assert(kTogether <= BlockProduct::kPackedRows && kStripe == BlockProduct::kPanel);
  for (int64_t row = 0; row < a.m; row += kTogether) {
    const int64_t rows = std::min(kTogether, a.m - row), blocks = (rows + T::kMaxRows - 1) / T::kMaxRows;
    Block group[kGroup];
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t from = rows * b / blocks, to = rows * (b + 1) / blocks;
      float* packed = a.packed + from * a.k;
      pack_block(a, row + from, to - from, packed);
      group[b] = {packed, row + from, static_cast<int>(to - from)};
    }
    for (int64_t column = 0; column < a.n; column += kStripe)
      multiply_columns<T>(a, group, static_cast<int>(blocks), column);
  }
}

template <class T, int C>
void sum_shifted(const ShiftedSum& a, int64_t at) {
  typename T::V sums[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) sums[c] = T::zero();
  for (int64_t t = 0; t < a.terms; ++t) {
    const float* x = a.x + a.shifts[t] + at;
    const typename T::V factor = T::set(a.factors[t]);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[c] = T::fma(factor, T::load(x + c * 16), sums[c]);
  }
  const typename T::V bias = T::set(a.bias);
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) T::store(a.out + at + c * 16, T::add(sums[c], bias));
}

template <class T>
void shifted_sum(const ShiftedSum& a) {
  int64_t at = 0;
  for (; at + 64 <= a.n; at += 64) sum_shifted<T, 4>(a, at);
  for (; at < a.n; at += 16) sum_shifted<T, 1>(a, at);
}

}  // namespace
}  // namespace ark::simd
