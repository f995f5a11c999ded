// Products in the weights' own precision (Precision in engine/program/program.h), and what has no instruction for them:
// the FMA chains of matmul.h over numbers that are exactly the same. bf16: the odd of two neighbours along k first, as
// the instruction adds them, denormals flushed by MXCSR. int8: integers whose sums over a block f32 holds exactly.
#pragma once

#include <xmmintrin.h>

#include <bit>

#include "engine/cpu/simd/matmul.h"
#include "engine/cpu/simd/pair.h"

namespace ark::simd {
namespace {

// ---- x

// As vcvtneps2bf16: to nearest even, denormals to zero, NaN stays NaN.
inline uint16_t rounded_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x), size = bits & 0x7FFFFFFF;
  const uint32_t nearest = bits + 0x7FFF + (bits >> 16 & 1);
  const uint32_t finite = size < 0x00800000 ? bits & 0x80000000 : nearest;
  return static_cast<uint16_t>((size > 0x7F800000 ? bits | 0x00400000 : finite) >> 16);
}

inline float through_bf16(float x) { return std::bit_cast<float>(uint32_t{rounded_to_bf16(x)} << 16); }

// Integers q of n numbers, and s: x is about q * s. s = max|x| / 127; q = x * (127 / max|x|), each step rounded to
// nearest even. Blocks below 2^-100 are zero. Where the largest is infinite or NaN, q is 0 and s is that: any product
// with it is NaN.
inline float quantize(const float* x, int64_t n, int32_t* q) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFF);
  const auto largest = std::bit_cast<float>(most);
  if (largest < 0x1p-100f || most >= 0x7F800000) {
    std::fill_n(q, n, 0);
    return largest < 0x1p-100f ? 0 : largest;
  }
  const float factor = 127 / largest, shift = 0x1.8p23f;  // the sum's last bit is 1
  for (int64_t i = 0; i < n; ++i)
    q[i] = std::bit_cast<int32_t>(x[i] * factor + shift) - std::bit_cast<int32_t>(shift);
  return largest / 127;
}

// Rows of x in units of kUnit along k that start with each slab, its last one padded, as [k][rows] of the numbers that
// `make(x, n, to)` makes of n numbers of a row.
template <int kUnit, class Make>
void pack_units(const MatMul& a, const Block& block, float* to, Make make) {
  constexpr int64_t kMost = 256;
  float words[16][kMost];
  for (int32_t slab = 0; slab < a.slab_count; ++slab) {
    for (int64_t k = a.slabs[slab], n; k < a.slabs[slab + 1]; k += n) {
      n = std::min(kMost, a.slabs[slab + 1] - k);
      const int64_t count = (n + kUnit - 1) / kUnit * kUnit;
      for (int r = 0; r < block.rows; ++r) make(a.x + (block.row + r) * a.k + k, n, words[r]);
      pack_rows(words[0], std::size(words[0]), block.rows, count, to);
      to += count * block.rows;
    }
  }
}

// What stands beside a row's scale: the sum of the integers, where the weight has zeros; times the scale, where it has
// offsets.
inline float sum_term(BlockTerms terms, float scale, int32_t sum) {
  return has_zeros(terms) ? static_cast<float>(sum) : static_cast<float>(sum) * scale;
}

// Rows of x by blocks of the weight: `words` words of integers as [word][rows], which `make(q, to)` makes of a whole
// block's, then the scales [rows], then sum_term() [rows]. This one begins at row k of the weight.
template <class Make>
void pack_block(const MatMul& a, const Block& block, int64_t k, int64_t words, float* to, Make make) {
  float made[16][kMaxPanelBlock];
  int32_t q[kMaxPanelBlock];
  const int64_t n = std::min<int64_t>(a.block, a.k - k);
  std::fill(q + n, q + kMaxPanelBlock, 0);
  for (int r = 0; r < block.rows; ++r) {
    const float scale = to[words * block.rows + r] = quantize(a.x + (block.row + r) * a.k + k, n, q);
    int32_t sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += q[i];
    to[(words + 1) * block.rows + r] = sum_term(a.terms, scale, sum);
    make(q, made[r]);
  }
  pack_rows(made[0], std::size(made[0]), block.rows, words, to);
}

// ---- one stripe of one panel for some blocks of rows

// D: how a piece of the weight is loaded and multiplied.
//   D(a, panel, stripe)     both in bytes and columns
//   Mode                    lives while the products of a slab are added
//   kFewRows                blocks of so many take the weight from where it is stored: no load()
//   kBlocks                 blocks of rows that share a piece, at most
//   piece(blocks)           rows of k of a piece at most, for so many
//   go(k, n, fetches)       to rows [k, k + n) of one slab
//   load()                  them, for several add()
//   kUnit                   rows of k that x is packed by, from each slab's begin
//   add(block, at, sums)    their products; `at`: rows of k before them, those of slabs rounded up to units
template <class D>
void multiply_dot_stripe(const MatMul& a, const Block* blocks, int count, int64_t p, int stripe,
                         bool fetches) {
  using T = typename D::Vec;
  Sums<T::kMaxRows> sums[D::kBlocks];
  D dot(a, p, stripe);
  const bool loads = blocks[0].rows > D::kFewRows;
  int64_t at = 0;
  for (int32_t slab = 0; slab < a.slab_count; ++slab) {
    for (int b = 0; b < count; ++b)
      std::memset(sums[b].at[0], 0, sizeof sums[b].at[0][0] * static_cast<std::size_t>(blocks[b].rows));
    {
      [[maybe_unused]] const typename D::Mode mode;
      for (int64_t k = a.slabs[slab], n; k < a.slabs[slab + 1];
           k += n, at += (n + D::kUnit - 1) / D::kUnit * D::kUnit) {
        n = std::min<int64_t>(dot.piece(count), a.slabs[slab + 1] - k);
        dot.go(k, n, fetches);
        if (loads) dot.load();
        for (int b = 0; b < count; ++b) dot.add(blocks[b], at, sums[b].at[0]);
      }
    }
    for (int b = 0; b < count; ++b)
      end_slab<T>(sums[b], slab, slab + 1 == a.slab_count, blocks[b].rows, kStripe);
  }
  // One NaN: which of an instruction's operands passes on its own is not the same everywhere.
  for (int b = 0; b < count; ++b)
    finish_rows<T, true>(a, blocks[b], p * a.panel + stripe, kStripe, sums[b].at[0]);
}

template <class D>
void multiply_dots(const MatMul& a) {
  // Up to two blocks of few rows: what the first one reads lies in the first-level cache for the second.
  const bool few = a.last_row - a.first_row <= 2 * D::kFewRows;
  multiply_packed<D::kBlocks>(
      a, few ? D::kFewRows : D::Vec::kMaxRows, packed_row(a.k),
      [&](const Block& block, float* to) { D::pack(a, block, to); }, multiply_dot_stripe<D>);
}

// ---- without instructions of their own

// Denormals count as zero, and what would be one is zero (FTZ, DAZ). No load or store passes its begin or end.
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { set(before_ | 0x8040); }
  ~FlushDenormals() { set(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static void set(unsigned csr) { asm volatile("ldmxcsr %0" : : "m"(csr) : "memory"); }
  unsigned before_;
};

template <class T>
class BF16Chains {
 public:
  using Vec = T;
  using Mode = FlushDenormals;
  static constexpr int kFewRows = 0, kBlocks = kGroup, kUnit = 2;
  BF16Chains(const MatMul& a, int64_t p, int stripe)
      : w_(reinterpret_cast<const uint16_t*>(a.w) + p * a.k * a.panel + stripe), panel_(a.panel) {}

  static void pack(const MatMul& a, const Block& block, float* to) {
    pack_units<kUnit>(a, block, to, [](const float* x, int64_t n, float* pair) {
      for (int64_t i = 0; i < n; i += 2, pair += 2) {
        pair[0] = i + 1 < n ? through_bf16(x[i + 1]) : 0;
        pair[1] = through_bf16(x[i]);
      }
    });
  }
  static int64_t piece(int) { return kPiece; }
  void go(int64_t k, int64_t n, bool) { k_ = k, n_ = n, count_ = (n + 1) / 2 * 2; }
  void load() {
    for (int64_t i = 0; i < count_; ++i) {
      for (int c = 0; c < kStripe; c += 16)
        T::store(numbers_[i ^ 1] + c, i < n_ ? T::load_bf16(w_ + (k_ + i) * panel_ + c) : T::zero());
    }
  }
  void add(const Block& block, int64_t at, float (*sums)[kStripe]) {
    multiply_block<T, F32Weights>(block, {numbers_[0], kStripe, at, count_, kStripe, false, false}, sums);
  }

 private:
  const uint16_t* w_;
  int64_t panel_, k_ = 0, n_ = 0, count_ = 0;
  alignas(64) float numbers_[kPiece][kStripe];
};

// As a tile's instruction: of each 32 rows of k from the slab's begin, padded with zeros, the even ones as one chain,
// the odd ones as another, their sum added to what there is.
template <class T>
class BF16TileChains {
 public:
  using Vec = T;
  using Mode = FlushDenormals;
  static constexpr int kFewRows = 0, kBlocks = kGroup, kUnit = 32, kHalf = kUnit / 2;
  BF16TileChains(const MatMul& a, int64_t p, int stripe)
      : w_(reinterpret_cast<const uint16_t*>(a.w) + p * a.k * a.panel + stripe), panel_(a.panel) {}

  static int place(int64_t i) { return static_cast<int>(i / 2 + i % 2 * kHalf); }
  static void pack(const MatMul& a, const Block& block, float* to) {
    pack_units<kUnit>(a, block, to, [](const float* x, int64_t n, float* unit) {
      for (; n > 0; n -= kUnit, x += kUnit, unit += kUnit) {
        for (int64_t i = 0; i < kUnit; ++i) unit[place(i)] = i < n ? through_bf16(x[i]) : 0;
      }
    });
  }
  static int64_t piece(int) { return kUnit; }
  void go(int64_t k, int64_t n, bool) { k_ = k, n_ = n; }
  void load() {
    for (int64_t i = 0; i < kUnit; ++i) {
      for (int c = 0; c < kStripe; c += 16)
        T::store(numbers_[place(i)] + c, i < n_ ? T::load_bf16(w_ + (k_ + i) * panel_ + c) : T::zero());
    }
  }
  void add(const Block& block, int64_t at, float (*sums)[kStripe]) {
    alignas(64) float even[T::kMaxRows][kStripe], odd[T::kMaxRows][kStripe];
    const auto half = [&](int first, float(*to)[kStripe]) {
      multiply_block<T, F32Weights>(block,
                                    {numbers_[first], kStripe, at + first, kHalf, kStripe, true, false}, to);
    };
    half(0, even);
    half(kHalf, odd);
    for (int r = 0; r < block.rows; ++r) {
      for (int c = 0; c < kStripe; c += 16)
        T::store(sums[r] + c,
                 T::add(T::load(sums[r] + c), T::add(T::load(even[r] + c), T::load(odd[r] + c))));
    }
  }

 private:
  const uint16_t* w_;
  int64_t panel_, k_ = 0, n_ = 0;
  alignas(64) float numbers_[kUnit][kStripe];
};

template <class T, class Q>
class Int8Chains {
 public:
  using Vec = T;
  struct Mode {};
  static constexpr int kFewRows = 0, kBlocks = kGroup, kUnit = 2;
  Int8Chains(const MatMul& a, int64_t p, int stripe)
      : block_(a.block),
        panel_(a.panel),
        terms_(a.terms),
        unit_bytes_(Q::kCodec.unit_bytes(a.panel, a.block, a.terms)),
        w_(reinterpret_cast<const uint8_t*>(a.w) + p * units_of(a.k, a.block) * unit_bytes_),
        stripe_(stripe) {}

  static void pack(const MatMul& a, const Block& block, float* to) {
    const auto make = [&](const int32_t* q, float* made) {
      for (int32_t i = 0; i < a.block; ++i) made[i] = static_cast<float>(q[i]);
    };
    for (int64_t k = 0; k < a.k; k += a.block, to += (a.block + 2) * block.rows)
      pack_block(a, block, k, a.block, to, make);
  }
  int64_t piece(int) const { return block_; }
  void go(int64_t k, int64_t, bool) { unit_ = k / block_; }
  void load() {
    const uint8_t* start = w_ + unit_ * unit_bytes_;
    const uint8_t* others = start + panel_ * scale_bytes(terms_);
    for (int c = 0; c < kStripe; c += 16) {
      T::store(scales_ + c, load_terms<T>(terms_, start, stripe_ + c));
      if (!has_zeros(terms_)) T::store(offsets_ + c, load_terms<T>(terms_, others, stripe_ + c));
      const auto zero = terms_ == BlockTerms::kZeros      ? T::load_u8(others + stripe_ + c)
                        : terms_ == BlockTerms::kScales16 ? T::set(middle_of(Q::kCodec.bits))
                                                          : T::zero();
      for (int64_t i = 0; i < block_; i += 2) {
        const Pair<T> code = Q::template load_codes<T>(
            start + panel_ * terms_bytes(terms_) + (i / 2 * panel_ + stripe_ + c) * Q::kCodec.pair_bytes());
        T::store(numbers_[i] + c, T::sub(code.even, zero));
        T::store(numbers_[i + 1] + c, T::sub(code.odd, zero));
      }
    }
  }
  void add(const Block& block, int64_t, float (*sums)[kStripe]) {
    alignas(64) float whole[T::kMaxRows][kStripe];  // sums of integers below 2^23: exact
    const float* x = block.packed + unit_ * (block_ + 2) * block.rows;
    multiply_block<T, F32Weights>({x, 0, block.rows}, {numbers_[0], kStripe, 0, block_, kStripe, true, false},
                                  whole);
    for (int r = 0; r < block.rows; ++r) {
      const auto scale = T::set(x[block_ * block.rows + r]), sum = T::set(x[(block_ + 1) * block.rows + r]);
      for (int c = 0; c < kStripe; c += 16) {
        auto v = T::fma(T::load(whole[r] + c), T::mul(scale, T::load(scales_ + c)), T::load(sums[r] + c));
        if (!has_zeros(terms_)) v = T::fma(sum, T::load(offsets_ + c), v);
        T::store(sums[r] + c, v);
      }
    }
  }

 private:
  int64_t block_, panel_, unit_ = 0;
  BlockTerms terms_;
  int64_t unit_bytes_;
  const uint8_t* w_;
  int stripe_;
  alignas(64) float scales_[kStripe], offsets_[kStripe];
  alignas(64) float numbers_[kMaxPanelBlock][kStripe];
};

template <class T>
void matmul_bf16(const MatMul& a) {
  multiply_dots<BF16Chains<T>>(a);
}
template <class T>
void matmul_bf16_tiles(const MatMul& a) {
  multiply_dots<BF16TileChains<T>>(a);
}
template <class T>
void matmul_int8(const MatMul& a) {
  a.stored == DType::kU4 ? multiply_dots<Int8Chains<T, U4Weights>>(a)
                         : multiply_dots<Int8Chains<T, U8Weights>>(a);
}

}  // namespace
}  // namespace ark::simd
