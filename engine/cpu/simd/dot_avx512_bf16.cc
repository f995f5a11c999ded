// bf16 products by vdpbf16ps.
#include "engine/cpu/simd/dot_avx512.h"
#include "engine/cpu/simd/pack_avx512.h"

namespace ark::simd {
namespace {

struct BF16Dots {
  static constexpr int kLines = 4, kTerms = 0;  // lines: of stored rows, a group
  static void fetch(const char* p) { Avx512::prefetch(p); }
  using Lanes = __m512;
  static void next() {}
  static __m512 begin(const float* sums, int) { return _mm512_loadu_ps(sums); }
  static __m512 dot(__m512 sum, __m512i x, __m512i w) {
    return _mm512_dpbf16_ps(sum, std::bit_cast<__m512bh>(x), std::bit_cast<__m512bh>(w));
  }
  template <int R, int C>
  static void end(const __m512 (&lanes)[R][C], int column, float (*sums)[kStripe]) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) _mm512_storeu_ps(sums[r] + column + c * 16, lanes[r][c]);
    }
  }
};

struct StoredPairs : StoredRows {
  static constexpr int kGroups = 1;
  void get(int64_t group, int, __m512i (*to)[4]) const { join_pairs(at(2 * group), at(2 * group + 1), *to); }
};

class BF16Pieces {
 public:
  using Vec = Avx512;
  struct Mode {};
  static constexpr int kFewRows = kFewDotRows, kBlocks = kDotBlocks, kUnit = 2;
  BF16Pieces(const MatMul& a, int64_t p, int stripe)
      : w_(a.w + (p * a.k * a.panel + stripe) * 2), stored_{{nullptr, a.panel * int64_t{2}, 0}} {}

  // As pack_units<2>() of rounded_to_bf16().
  static void pack(const MatMul& a, const Block& block, float* to) {
    const float* x = a.x + block.row * a.k;
    for (int32_t slab = 0; slab < a.slab_count; ++slab) {
      const int64_t first = a.slabs[slab], n = a.slabs[slab + 1] - first, whole = n / 32 * 16;
      const auto pairs = [](__m512 low, __m512 high) {
        return std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
      };
      pack_words(block.rows, whole, to, [&](int64_t r, int64_t w) {
        const float* p = x + r * a.k + first + 2 * w;
        return pairs(_mm512_loadu_ps(p), _mm512_loadu_ps(p + 16));
      });
      pack_words(block.rows, (n + 1) / 2 - whole, to + whole * block.rows, [&](int64_t r, int64_t) {
        const float* p = x + r * a.k + first + 2 * whole;
        return pairs(load_first(p, n - 2 * whole), load_first(p + 16, n - 2 * whole - 16));
      });
      to += (n + 1) / 2 * block.rows;
    }
  }
  static int64_t piece(int blocks) { return blocks > kBlocksOfShortPiece ? kLongPiece : kPiece; }
  void go(int64_t k, int64_t n, bool fetches) {
    stored_.first = w_ + k * stored_.stride;
    stored_.count = n;
    groups_ = (n + 1) / 2;
    ahead_ = fetches ? stored_.ahead() : nullptr;
  }
  void load() {
    const bool fetches = ahead_ && groups_ > kPiece / 2;
    for (int64_t g = 0; g < groups_; ++g) {
      if (fetches) fetch(ahead_ + g * 256, 4);
      stored_.get(g, 0, &words_[g]);
    }
    if (fetches) ahead_ = nullptr;
  }
  void add(const Block& block, int64_t at, float (*sums)[kStripe]) {
    const auto* x = reinterpret_cast<const int32_t*>(block.packed) + at / 2 * block.rows;
    run_block(BF16Dots{}, block.rows, x, stored_, words_, 1, groups_, ahead_, sums);
    ahead_ = nullptr;
  }

 private:
  const std::byte* w_;
  StoredPairs stored_;
  int64_t groups_ = 0;
  const char* ahead_ = nullptr;
  __m512i words_[kLongPiece / 2][4];
};

}  // namespace

void matmul_bf16_by_dots(const MatMul& a) { multiply_dots<BF16Pieces>(a); }

}  // namespace ark::simd
