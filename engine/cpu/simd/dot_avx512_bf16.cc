// bf16 products by vdpbf16ps.
#include "engine/cpu/simd/dot_avx512.h"

namespace ark::simd {
namespace {

struct BF16Dots {
  static constexpr int kLines = 4;  // of stored rows, a group
  using Lanes = __m512;
  static __m512 begin(const float* sums) { return _mm512_loadu_ps(sums); }
  static __m512 dot(__m512 sum, __m512i x, __m512i w) {
    return _mm512_dpbf16_ps(sum, std::bit_cast<__m512bh>(x), std::bit_cast<__m512bh>(w));
  }
  struct Columns {};
  static Columns columns(int) { return {}; }
  static int row(int r) { return r; }
  static void end(__m512 lanes, int, Columns, float* sums) { _mm512_storeu_ps(sums, lanes); }
};

struct StoredPairs : StoredRows {
  static constexpr int kGroups = 1;
  void get(int64_t group, int, __m512i (*to)[4]) const { join_pairs(at(2 * group), at(2 * group + 1), *to); }
};

class BF16Pieces {
 public:
  using Vec = Avx512;
  struct Mode {};
  static constexpr int kFewRows = kFewDotRows;
  BF16Pieces(const MatMul& a, int64_t p, int stripe)
      : w_(a.w + (p * a.k * a.panel + stripe) * 2), stored_{{nullptr, a.panel * int64_t{2}, 0}} {}

  static void pack(const MatMul& a, const Block& block, float* to) {
    pack_pairs<1>(a, block, to, [](const float* x, int64_t n, float* pairs) {
      uint16_t made[258];
      made[n] = 0;
      for (int64_t i = 0; i < n; ++i) made[i] = rounded_to_bf16(x[i]);
      std::memcpy(pairs, made, static_cast<std::size_t>((n + 1) / 2 * 4));
    });
  }
  static int64_t piece() { return kPiece; }
  void go(int64_t k, int64_t n, bool fetches) {
    stored_.first = w_ + k * stored_.stride;
    stored_.count = n;
    groups_ = (n + 1) / 2;
    ahead_ = fetches ? stored_.ahead() : nullptr;
  }
  void load() {
    for (int64_t g = 0; g < groups_; ++g) stored_.get(g, 0, &words_[g]);
  }
  void add(const Block& block, int64_t at, float (*sums)[kStripe]) {
    const auto* x = reinterpret_cast<const int32_t*>(block.packed) + at / 2 * block.rows;
    run_block(BF16Dots{}, block.rows, x, stored_, words_, groups_, ahead_, sums);
    ahead_ = nullptr;
  }

 private:
  const std::byte* w_;
  StoredPairs stored_;
  int64_t groups_ = 0;
  const char* ahead_ = nullptr;
  __m512i words_[kPiece / 2][4];
};

}  // namespace

void matmul_bf16_by_dots(const MatMul& a) { multiply_dots<BF16Pieces>(a); }

}  // namespace ark::simd
