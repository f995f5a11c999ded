// The matrix product over panels of codes (engine/program/weight_codec.h): the chains of matmul.h over the numbers
// that the codes stand for, so the bits are those of the same weight kept as f32.
//
// A few rows take the numbers from registers as they are decoded; more rows share a decoded piece.
#pragma once

#include "engine/cpu/simd/matmul.h"
#include "engine/cpu/simd/pair.h"
#include "engine/program/weight_codec.h"

namespace ark::simd {
namespace {

constexpr int kFewRows = 4;

// Rows [first, first + count) of one stripe of a panel, all of one block; first is even.
struct CodePiece {
  const uint8_t *scales, *others;  // terms of its columns
  const uint8_t* codes;            // of row `first`
  int64_t stride;                  // bytes from one pair of rows to the next
  int64_t first, count;
  int width;
  bool opens;
};

// What the codes of sixteen columns stand for in one block. Of kScales16 as an offset: of a scale with 11 bits that,
// and a number, have no rounding; but an infinite scale makes NaN of every code.
template <class T, class Q, BlockTerms kTerms>
struct Terms {
  typename T::V scale, other;
  Terms() = default;
  Terms(const CodePiece& piece, int column) : scale(load_terms<T>(kTerms, piece.scales, column)) {
    if constexpr (kTerms == BlockTerms::kZeros)
      other = T::load_u8(piece.others + column);
    else if constexpr (kTerms == BlockTerms::kScales16)
      other = T::mul(T::set(-static_cast<float>(middle_of(Q::kCodec.bits))), scale);
    else
      other = load_terms<T>(kTerms, piece.others, column);
  }
  typename T::V number(typename T::V code) const {
    return kTerms == BlockTerms::kZeros ? T::mul(T::sub(code, other), scale) : T::fma(code, scale, other);
  }
};

template <class T, class Q, BlockTerms kTerms>
Pair<T> decode(const uint8_t* codes, const Terms<T, Q, kTerms>& terms) {
  const Pair<T> code = Q::template load_codes<T>(codes);
  return {terms.number(code.even), terms.number(code.odd)};
}

// The numbers of a piece as rows of kStripe.
template <class T, class Q, BlockTerms kTerms>
void decode_piece(const CodePiece& piece, float (*rows)[kStripe]) {
  for (int column = 0; column < piece.width; column += 16) {
    const Terms<T, Q, kTerms> terms(piece, column);
    const uint8_t* codes = piece.codes + column * Q::kCodec.pair_bytes();
    for (int64_t i = 0; i < piece.count; i += 2, codes += piece.stride) {
      T::prefetch(codes + kAhead);
      const auto two = decode<T, Q>(codes, terms);
      T::store(rows[i] + column, two.even);
      T::store(rows[i + 1] + column, two.odd);  // there is room for an odd count's neighbour
    }
  }
}

// The chains of C vectors of columns for R rows over one piece.
template <class T, class Q, BlockTerms kTerms, int R, int C>
void run_codes(const float* x, const CodePiece& piece, float (*sums)[kStripe], int column) {
  using V = typename T::V;
  V acc[R][C];
  Terms<T, Q, kTerms> terms[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    terms[c] = Terms<T, Q, kTerms>(piece, column + c * 16);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) acc[r][c] = piece.opens ? T::zero() : T::load(sums[r] + column + c * 16);
  }
  const uint8_t* codes = piece.codes + column * Q::kCodec.pair_bytes();
  for (int64_t i = 0; i < piece.count; i += 2, codes += piece.stride, x += 2 * R) {
    T::prefetch(codes + kAhead);
    const bool has_odd = i + 1 < piece.count;
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const auto two = decode<T, Q>(codes + c * 16 * Q::kCodec.pair_bytes(), terms[c]);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[r][c] = T::fma(T::set(x[r]), two.even, acc[r][c]);
      if (!has_odd) continue;
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[r][c] = T::fma(T::set(x[R + r]), two.odd, acc[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) T::store(sums[r] + column + c * 16, acc[r][c]);
  }
}

template <class T, class Q, BlockTerms kTerms, int R = kFewRows>
void run_few(const Block& block, const CodePiece& piece, float (*sums)[kStripe]) {
  if (block.rows == R) {
    constexpr int kColumns = R <= 2 ? T::kSmallVectors : T::kVectors;
    const float* x = block.packed + piece.first * R;
    int column = 0;
    for (; column + kColumns * 16 <= piece.width; column += kColumns * 16)
      run_codes<T, Q, kTerms, R, kColumns>(x, piece, sums, column);
    for (; column < piece.width; column += 16) run_codes<T, Q, kTerms, R, 1>(x, piece, sums, column);
  } else if constexpr (R > 1) {
    run_few<T, Q, kTerms, R - 1>(block, piece, sums);
  }
}

// Blocks of rows that share what is decoded at once, at most, and how many of its rows there are then: many blocks'
// lie in the second-level cache, and sums are loaded and stored seldom.
constexpr int kDecodedBlocks = 12;
constexpr int64_t kDecodedRows = 256;

// One stripe of one panel for some blocks of rows.
template <class T, class Q, BlockTerms kTerms>
void multiply_coded_stripe(const MatMul& a, const Block* blocks, int count, int64_t p, int stripe, bool) {
  const int64_t block_bytes = Q::kCodec.unit_bytes(a.panel, a.block, kTerms), pair = Q::kCodec.pair_bytes();
  const auto* panel = reinterpret_cast<const uint8_t*>(a.w) + p * units_of(a.k, a.block) * block_bytes;
  Sums<T::kMaxRows> sums[kDecodedBlocks];
  alignas(64) float numbers[kDecodedRows][kStripe];
  const bool few = count == 1 && blocks[0].rows <= kFewRows;
  const int64_t most = count > 2 ? kDecodedRows : kPiece;
  const int width = std::min(kStripe, a.panel - stripe);
  // Rows from k on, `limit` at most, all of one block.
  const auto piece_at = [&](int64_t k, int64_t limit, bool opens) {
    constexpr int64_t kScale = scale_bytes(kTerms), kBoth = terms_bytes(kTerms);
    const int64_t in_block = k % a.block;
    const uint8_t* start = panel + k / a.block * block_bytes;
    return CodePiece{start + stripe * kScale,
                     start + a.panel * kScale + stripe * (kBoth - kScale),
                     start + a.panel * kBoth + (in_block / 2 * a.panel + stripe) * pair,
                     a.panel * pair,
                     k,
                     std::min(limit, a.block - in_block),
                     width,
                     opens};
  };
  for (int32_t slab = 0; slab < a.slab_count; ++slab) {
    const int64_t end = a.slabs[slab + 1];
    int64_t k = a.slabs[slab];
    do {  // an empty slab sums to zero
      const bool opens = k == a.slabs[slab];
      if (few) {
        const CodePiece piece = piece_at(k, std::min(end - k, kPiece), opens);
        run_few<T, Q, kTerms>(blocks[0], piece, sums[0].at[0]);
        k += piece.count;
        continue;
      }
      int64_t decoded = 0;
      for (const int64_t rows = std::min(end - k, most); decoded < rows;) {
        const CodePiece piece = piece_at(k + decoded, rows - decoded, opens);
        decode_piece<T, Q, kTerms>(piece, numbers + decoded);
        decoded += piece.count;
      }
      const Piece<F32Weights> all{numbers[0], kStripe, k, decoded, width, opens, false};
      for (int b = 0; b < count; ++b) multiply_block<T, F32Weights>(blocks[b], all, sums[b].at[0]);
      k += decoded;
    } while (k < end);
    for (int b = 0; b < count; ++b)
      end_slab<T>(sums[b], slab, slab + 1 == a.slab_count, blocks[b].rows, width);
  }
  for (int b = 0; b < count; ++b) finish_rows<T>(a, blocks[b], p * a.panel + stripe, width, sums[b].at[0]);
}

// False if `a` is not stored as W. T: the vector type.
template <class T, class W>
bool matmul_of(const MatMul& a) {
  if (a.stored != W::kCodec.type) return false;
  if constexpr (W::kCodec.has_numbers) {
    if (a.block == 0) multiply<T>(a, multiply_stripe<T, W>);
  }
  if constexpr (W::kCodec.has_codes) {
    constexpr BlockTerms kZeros = BlockTerms::kZeros, kOffsets = BlockTerms::kOffsets,
                         kOffsets16 = BlockTerms::kOffsets16, kScales16 = BlockTerms::kScales16;
    if (a.block != 0 && a.terms == kZeros)
      multiply<T, kDecodedBlocks>(a, multiply_coded_stripe<T, W, kZeros>);
    if constexpr (W::kCodec.allows(kMinPanelBlock, kOffsets)) {
      if (a.terms == kOffsets) multiply<T, kDecodedBlocks>(a, multiply_coded_stripe<T, W, kOffsets>);
      if (a.terms == kOffsets16) multiply<T, kDecodedBlocks>(a, multiply_coded_stripe<T, W, kOffsets16>);
      if (a.terms == kScales16) multiply<T, kDecodedBlocks>(a, multiply_coded_stripe<T, W, kScales16>);
    }
  }
  return true;
}

template <class T, class... W>
void matmul_of_any(const MatMul& a, CodecList<W...>) {
  (void)(matmul_of<T, W>(a) || ...);
}
template <class T>
void matmul(const MatMul& a) {
  matmul_of_any<T>(a, WeightCodecs{});
}

}  // namespace
}  // namespace ark::simd
