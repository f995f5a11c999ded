// The matrix product over packed panels. Per output and slab one FMA chain from +0 in ascending k; slab sums
// are added as a balanced pairwise tree. Rows x vectors of accumulators stay in registers; x is packed
// [k][rows], so that one pointer walks over the broadcasts.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/cpu/simd/lanes.h"
#include "engine/cpu/simd/table.h"
#include "engine/cpu/simd/transpose.h"
#include "engine/program/program.h"
#include "engine/program/weight_codec.h"

namespace ark::simd {
namespace {

template <class T>
typename T::V activate(typename T::V v, uint32_t bits) {
  const Lanes<T> x = v;
  if (bits & kEpilogueRelu) return pointwise::Relu::of(x).v;
  if (bits & kEpilogueSilu) return pointwise::Silu::of(x).v;
  if (bits & kEpilogueGelu) return pointwise::Gelu::of(x, 0).v;
  if (bits & kEpilogueGeluTanh) return pointwise::Gelu::of(x, 1).v;
  return v;
}

// `lanes` <= 16 elements at `column` of a row that starts at element `start` of the output. Inline: what the epilogue
// says is the same for all of them.
template <class T>
[[gnu::always_inline]] inline void finish(typename T::V v, const Epilogue& e, int64_t column, int64_t start,
                                          float* out, int lanes) {
  const bool whole = lanes == 16;
  const auto load = [&](const float* p) { return whole ? T::load(p) : T::load_partial(p, lanes); };
  if (e.bits & kEpilogueBias) v = T::add(v, load(e.bias + column));
  v = activate<T>(v, e.bits);
  const int64_t element = start + column;
  if (e.bits & kEpilogueResidual) v = T::add(v, load(e.residual + element));
  if (e.factor) v = T::mul(load(e.factor + element), v);
  if (whole) {
    T::store(out + element, v);
  } else {
    T::store_partial(out + element, v, lanes);
  }
}

// Scales or offsets of sixteen columns of codes (BlockTerms).
template <class T>
typename T::V load_terms(BlockTerms kind, const uint8_t* terms, int column) {
  return has_halves(kind) ? T::load_f16(reinterpret_cast<const uint16_t*>(terms) + column)
                          : T::load(reinterpret_cast<const float*>(terms) + column);
}

// How far ahead of its use a weight stream is fetched, in bytes.
constexpr int64_t kAhead = 8 << 10;
// Columns whose sums are kept together.
constexpr int kStripe = 64;
// Blocks of rows that share a piece of the weight while it lies in the first-level cache, and that piece's
// length along k. Neither changes a result: a chain is continued from its stored sum.
constexpr int kGroup = 4;
constexpr int64_t kPiece = 64;

// Rows of x as one block, packed[k * rows + r], and their number in the output.
struct Block {
  const float* packed;
  int64_t row;
  int rows;
};

// Sums of R rows x kStripe columns, [level][row][column]: level 0 is the slab just added up, level l + 1 the
// sum of 2^l slabs that waits for its right neighbour.
template <int R>
struct Sums {
  alignas(64) float at[8][R][kStripe];
};

// Where a pass over the weight stands: `count` rows of k from `w`, the first of their slab or later ones;
// whether what comes kAhead later is to be fetched.
template <class W>
struct Piece {
  const typename W::Element* w;
  int64_t stride, first, count;
  int width;
  bool opens, fetches;
};

// The chains of C vectors of columns over one piece. With kFetch each row of the weight is fetched
// whole, kAhead before its use.
template <class T, class W, int R, int C, bool kFetch>
void run_chains(const float* x, const Piece<W>& piece, float (*sums)[kStripe], int column) {
  using V = typename T::V;
  const typename W::Element* w = piece.w + column;
  const int lines = (piece.width * static_cast<int>(sizeof(typename W::Element)) + 63) / 64;
  V acc[R][C];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[r][c] = piece.opens ? T::zero() : T::load(sums[r] + column + c * 16);
  }
  for (int64_t k = 0; k < piece.count; ++k, x += R, w += piece.stride) {
    if constexpr (kFetch) {
      for (int line = 0; line < lines; ++line)
        T::prefetch(reinterpret_cast<const char*>(w) + kAhead + line * 64);
    }
    V wv[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) wv[c] = W::template load<T>(w + c * 16);
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

// One piece of a stripe, C vectors of columns at a time; the first of them fetches ahead for all.
template <class T, class W, int R, int C>
void multiply_piece(const Block& block, const Piece<W>& piece, float (*sums)[kStripe]) {
  const float* x = block.packed + piece.first * R;
  int column = 0;
  if (piece.fetches && C * 16 <= piece.width) {
    run_chains<T, W, R, C, true>(x, piece, sums, 0);
    column = C * 16;
  }
  for (; column + C * 16 <= piece.width; column += C * 16)
    run_chains<T, W, R, C, false>(x, piece, sums, column);
  if constexpr (C > 1) {
    for (; column < piece.width; column += 16) run_chains<T, W, R, 1, false>(x, piece, sums, column);
  }
}

// The instance of multiply_piece for the block's rows, by recursion over R.
template <class T, class W, int R = T::kMaxRows>
void multiply_block(const Block& block, const Piece<W>& piece, float (*sums)[kStripe]) {
  if (block.rows == R) {
    multiply_piece<T, W, R, R <= T::kSmallRows ? T::kSmallVectors : T::kVectors>(block, piece, sums);
  } else if constexpr (R > 1) {
    multiply_block<T, W, R - 1>(block, piece, sums);
  }
}

// The slab at level 0 of `rows` rows is complete: adds it to those that wait for it.
template <class T, int R>
void end_slab(Sums<R>& sums, int32_t slab, bool is_last, int rows, int width) {
  int level = 0;
  for (; slab >> level & 1; ++level) {
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < width; c += 16)
        T::store(sums.at[0][r] + c, T::add(T::load(sums.at[level + 1][r] + c), T::load(sums.at[0][r] + c)));
    }
  }
  if (!is_last)
    std::memcpy(sums.at[level + 1], sums.at[0], sizeof sums.at[0][0] * static_cast<std::size_t>(rows));
}

// kOneNaN: whatever the sums end in, before the epilogue (dot_matmul.h).
template <class T, bool kOneNaN = false>
void finish_rows(const MatMul& a, const Block& block, int64_t column, int width,
                 const float (*sums)[kStripe]) {
  const auto sum = [&](int r, int c) {
    const typename T::V v = T::load(sums[r] + c);
    return kOneNaN ? T::select(T::is_nan(v), T::set(std::bit_cast<float>(0x7FC00000)), v) : v;
  };
  // What most products end with: the general way took a third of a product by tiles.
  const bool is_short = (a.epilogue.bits & ~uint32_t{kEpilogueResidual}) == 0 && column + width <= a.n;
  for (int r = 0; r < block.rows; ++r) {
    const int64_t start = (block.row + r) * a.n;
    if (is_short) {
      const float* const residual =
          a.epilogue.bits & kEpilogueResidual ? a.epilogue.residual + start + column : nullptr;
      const float* const factor = a.epilogue.factor ? a.epilogue.factor + start + column : nullptr;
      for (int c = 0; c < width; c += 16) {
        typename T::V v = sum(r, c);
        if (residual) v = T::add(v, T::load(residual + c));
        if (factor) v = T::mul(T::load(factor + c), v);
        T::store(a.out + start + column + c, v);
      }
      continue;
    }
    for (int c = 0; c < width; c += 16) {
      const int lanes = static_cast<int>(std::min<int64_t>(16, a.n - column - c));
      if (lanes > 0) finish<T>(sum(r, c), a.epilogue, column + c, start, a.out, lanes);
    }
  }
}

// One stripe of one panel for some blocks of rows.
template <class T, class W>
void multiply_stripe(const MatMul& a, const Block* blocks, int count, int64_t p, int stripe, bool fetches) {
  const auto* panel = reinterpret_cast<const typename W::Element*>(a.w) + p * a.k * a.panel + stripe;
  Sums<T::kMaxRows> sums[kGroup];
  Piece<W> piece{panel, a.panel, 0, 0, std::min(kStripe, a.panel - stripe), true, true};
  // A weight that is read only once needs no pieces.
  const bool once = count == 1 && blocks[0].rows <= T::kSmallRows;
  for (int32_t slab = 0; slab < a.slab_count; ++slab) {
    const int64_t end = a.slabs[slab + 1];
    int64_t k = a.slabs[slab];
    do {  // an empty slab sums to zero
      piece.w = panel + k * a.panel;
      piece.first = k;
      piece.count = once ? end - k : std::min(kPiece, end - k);
      piece.opens = k == a.slabs[slab];
      for (int b = 0; b < count; ++b) {
        piece.fetches = fetches && b == 0;
        multiply_block<T, W>(blocks[b], piece, sums[b].at[0]);
      }
      k += piece.count;
    } while (k < end);
    for (int b = 0; b < count; ++b)
      end_slab<T>(sums[b], slab, slab + 1 == a.slab_count, blocks[b].rows, piece.width);
  }
  for (int b = 0; b < count; ++b)
    finish_rows<T>(a, blocks[b], p * a.panel + stripe, piece.width, sums[b].at[0]);
}

// Rows of k floats, `stride` apart, as [k][rows].
inline void pack_rows(const float* x, int64_t stride, int64_t rows, int64_t k, float* packed) {
  transpose(x, stride, rows, k, packed, rows);
}

// Splits the rows into blocks of equal size as far as possible: 13 rows are 7 + 6, not 12 + 1; or with kWhole into
// whole ones and what is left. Each takes `row_size` floats a row where `pack` lays it. `multiply_stripe`: what one
// stripe of one panel does, for up to kBlocks blocks.
template <int kBlocks = kGroup, bool kWhole = false, class Pack, class Stripe>
void multiply_packed(const MatMul& a, int64_t most_rows, int64_t row_size, Pack pack,
                     Stripe multiply_stripe) {
  const int64_t rows = a.last_row - a.first_row;
  const int64_t blocks = (rows + most_rows - 1) / most_rows;
  const auto block_at = [&](int64_t b) {
    const int64_t from = kWhole ? b * most_rows : rows * b / blocks,
                  to = kWhole ? std::min(from + most_rows, rows) : rows * (b + 1) / blocks;
    const float* packed = row_size > 0 ? a.packed + from * row_size : a.x + a.first_row * a.k;
    return Block{packed, a.first_row + from, static_cast<int>(to - from)};
  };
  for (int64_t b = 0; b < blocks && row_size > 0 && !a.is_packed; ++b)
    pack(block_at(b), a.packed + (block_at(b).row - a.first_row) * row_size);
  for (int64_t p = a.first_panel; p < a.last_panel; ++p) {
    for (int64_t b = 0; b < blocks; b += kBlocks) {
      Block group[kBlocks];
      const int count = static_cast<int>(std::min<int64_t>(kBlocks, blocks - b));
      for (int i = 0; i < count; ++i) group[i] = block_at(b + i);
      for (int stripe = 0; stripe < a.panel; stripe += kStripe)
        multiply_stripe(a, group, count, p, stripe, b == 0);
    }
  }
}

// Of x as it is; a single row needs no packing.
template <class T, int kBlocks = kGroup, class Stripe>
void multiply(const MatMul& a, Stripe multiply_stripe) {
  const auto pack = [&](const Block& block, float* to) {
    pack_rows(a.x + block.row * a.k, a.k, block.rows, a.k, to);
  };
  multiply_packed<kBlocks>(a, T::kMaxRows, a.last_row - a.first_row > 1 ? a.k : 0, pack, multiply_stripe);
}

}  // namespace
}  // namespace ark::simd
