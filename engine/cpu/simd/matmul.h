// The matrix product over packed panels. Per output and slab one FMA chain from +0 in ascending k; slab sums
// are added as a balanced pairwise tree. Rows x vectors of accumulators stay in registers; x is packed
// [k][rows], so that one pointer walks over the broadcasts.
#pragma once

#include <algorithm>
#include <cstring>

#include "engine/cpu/simd/math.h"
#include "engine/cpu/simd/table.h"
#include "engine/program.h"

namespace ark::simd {
namespace {

template <class T>
struct F32Weights {
  using Element = float;
  static typename T::V load(const float* p) { return T::load(p); }
};
template <class T>
struct F16Weights {
  using Element = uint16_t;
  static typename T::V load(const uint16_t* p) { return T::load_f16(p); }
};
template <class T>
struct BF16Weights {
  using Element = uint16_t;
  static typename T::V load(const uint16_t* p) { return T::load_bf16(p); }
};

template <class T>
typename T::V activate(typename T::V v, uint32_t bits) {
  if (bits & kEpilogueRelu) return relu<T>(v);
  if (bits & kEpilogueSilu) return silu<T>(v);
  if (bits & kEpilogueGelu) return gelu<T>(v);
  if (bits & kEpilogueGeluTanh) return gelu_tanh<T>(v);
  return v;
}

// `lanes` <= 16 elements at `column` of a row whose output starts at `out`, residual at `residual`.
template <class T>
void finish(typename T::V v, const Epilogue& e, int64_t column, const float* residual, float* out,
            int lanes) {
  const bool whole = lanes == 16;
  const auto load = [&](const float* p) { return whole ? T::load(p) : T::load_partial(p, lanes); };
  if (e.bits & kEpilogueBias) v = T::add(v, load(e.bias + column));
  v = activate<T>(v, e.bits);
  if (e.bits & kEpilogueResidual) v = T::add(v, load(residual + column));
  if (whole) {
    T::store(out + column, v);
  } else {
    T::store_partial(out + column, v, lanes);
  }
}

// Rows of x as one block: packed[k * R + r], and where their outputs start.
struct Block {
  const float* packed;
  int64_t row;
};

// How far ahead of its use a weight stream is fetched, in bytes.
constexpr int64_t kAhead = 32 << 10;
// Columns whose sums are kept together.
constexpr int kStripe = 64;

// Sums of R rows x kStripe columns, [level][row][column]: level 0 is the slab just added up, level l + 1 the
// sum of 2^l slabs that waits for its right neighbour.
template <int R>
struct Sums {
  alignas(64) float at[8][R][kStripe];
};

// The chains of C vectors of columns over one slab.
template <class T, class W, int R, int C>
void run_chains(const float* x, const typename W::Element* w, int64_t stride, int64_t count,
                float (*sums)[kStripe], int column) {
  using V = typename T::V;
  constexpr int kLines = (C * 16 * static_cast<int>(sizeof(typename W::Element)) + 63) / 64;
  V acc[R][C];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = T::zero();
  }
  for (int64_t k = 0; k < count; ++k, x += R, w += stride) {
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line)
      T::prefetch(reinterpret_cast<const char*>(w) + kAhead + line * 64);
    V wv[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) wv[c] = W::load(w + c * 16);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const V xv = T::set(x[r]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = T::fma(xv, wv[c], acc[r][c]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) T::store(sums[r] + column + c * 16, acc[r][c]);
  }
}

// One slab of a stripe of `width` columns, C vectors at a time.
template <class T, class W, int R, int C>
void multiply_slab(const float* x, const typename W::Element* w, int64_t stride, int64_t count, int width,
                   float (*sums)[kStripe]) {
  int column = 0;
  for (; column + C * 16 <= width; column += C * 16)
    run_chains<T, W, R, C>(x, w + column, stride, count, sums, column);
  if constexpr (C > 1) {
    for (; column < width; column += 16) run_chains<T, W, R, 1>(x, w + column, stride, count, sums, column);
  }
}

// Adds level + 1 (left) and level 0 (right) into level 0.
template <class T, int R>
void merge(Sums<R>& sums, int level, int width) {
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < width; c += 16) {
      T::store(sums.at[0][r] + c, T::add(T::load(sums.at[level + 1][r] + c), T::load(sums.at[0][r] + c)));
    }
  }
}

// All columns of one panel for one block of R rows.
template <class T, class W, int R, int C>
void multiply_panel(const MatMul& a, const Block& block, int64_t p) {
  const auto* panel = reinterpret_cast<const typename W::Element*>(a.w) + p * a.k * a.panel;
  Sums<R> sums;
  for (int stripe = 0; stripe < a.panel; stripe += kStripe) {
    const int width = std::min(kStripe, a.panel - stripe);
    for (int32_t slab = 0; slab < a.slab_count; ++slab) {
      const int64_t first = a.slabs[slab], count = a.slabs[slab + 1] - first;
      multiply_slab<T, W, R, C>(block.packed + first * R, panel + first * a.panel + stripe, a.panel, count,
                                width, sums.at[0]);
      int level = 0;
      for (; slab >> level & 1; ++level) merge<T, R>(sums, level, width);
      if (slab + 1 < a.slab_count) std::memcpy(sums.at[level + 1], sums.at[0], sizeof sums.at[0]);
    }
    const int64_t column = p * a.panel + stripe;
    for (int r = 0; r < R; ++r) {
      const int64_t start = (block.row + r) * a.n;
      const float* residual = a.epilogue.residual ? a.epilogue.residual + start : nullptr;
      for (int c = 0; c < width; c += 16) {
        const int lanes = static_cast<int>(std::min<int64_t>(16, a.n - column - c));
        if (lanes > 0)
          finish<T>(T::load(sums.at[0][r] + c), a.epilogue, column + c, residual, a.out + start, lanes);
      }
    }
  }
}

// The instance of multiply_panel for `rows` rows, by recursion over R.
template <class T, class W, int R = T::kMaxRows>
void multiply_rows(const MatMul& a, const Block& block, int64_t rows, int64_t p) {
  if (rows == R) {
    multiply_panel<T, W, R, R <= T::kSmallRows ? T::kSmallVectors : T::kVectors>(a, block, p);
  } else if constexpr (R > 1) {
    multiply_rows<T, W, R - 1>(a, block, rows, p);
  }
}

// x[row .. row + rows) as [k][rows].
inline void pack_rows(const float* x, int64_t rows, int64_t k, float* packed) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < k; ++i) packed[i * rows + r] = x[r * k + i];
  }
}

// Splits the rows into blocks of equal size as far as possible: 13 rows are 7 + 6, not 12 + 1.
template <class T, class W>
void multiply(const MatMul& a) {
  const int64_t rows = a.last_row - a.first_row;
  const int64_t blocks = (rows + T::kMaxRows - 1) / T::kMaxRows;
  const auto border = [&](int64_t b) { return rows * b / blocks; };
  for (int64_t b = 0; b < blocks && rows > 1; ++b) {
    pack_rows(a.x + (a.first_row + border(b)) * a.k, border(b + 1) - border(b), a.k,
              a.packed + border(b) * a.k);
  }
  const float* packed = rows > 1 ? a.packed : a.x + a.first_row * a.k;
  for (int64_t p = a.first_panel; p < a.last_panel; ++p) {
    for (int64_t b = 0; b < blocks; ++b) {
      multiply_rows<T, W>(a, {packed + border(b) * a.k, a.first_row + border(b)}, border(b + 1) - border(b),
                          p);
    }
  }
}

template <class T>
void matmul(const MatMul& a) {
  switch (a.stored) {
    case DType::kF16:
      return multiply<T, F16Weights<T>>(a);
    case DType::kBF16:
      return multiply<T, BF16Weights<T>>(a);
    default:
      return multiply<T, F32Weights<T>>(a);
  }
}

}  // namespace
}  // namespace ark::simd
