// Products of codes by vpdpbusd.
#include "engine/cpu/simd/dot_avx512.h"

namespace ark::simd {
namespace {

template <int bits>
struct CodeDots {
  static constexpr int kLines = bits / 2;  // of codes, a group
  const float *x_scales, *x_sums;          // of the rows
  BlockTerms terms;
  const uint8_t *scales, *others;  // of the columns
  // Not __m512i, which gcc 12 converts in the loop, through memory.
  using Lanes [[gnu::vector_size(64)]] = int32_t;
  static Lanes begin(const float*) { return Lanes{}; }
  static Lanes dot(Lanes sum, __m512i x, __m512i w) {
    return reinterpret_cast<Lanes>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), w, x));
  }
  struct Columns {
    __m512 scale, other;
    bool has_offsets;
  };
  Columns columns(int column) const {
    const bool has_offsets = terms != BlockTerms::kZeros;
    return {load_terms<Avx512>(terms, scales, column),
            has_offsets ? load_terms<Avx512>(terms, others, column) : Avx512::load_u8(others + column),
            has_offsets};
  }
  struct Row {
    __m512 sum, scale;
  };
  Row row(int r) const { return {_mm512_set1_ps(x_sums[r]), _mm512_set1_ps(x_scales[r])}; }
  // All but the last two steps are of integers below 2^23: exact.
  static void end(Lanes lanes, const Row& x, const Columns& w, float* sums) {
    __m512 whole = _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(lanes));
    if (!w.has_offsets) whole = _mm512_fnmadd_ps(w.other, x.sum, whole);
    __m512 v = _mm512_fmadd_ps(whole, _mm512_mul_ps(x.scale, w.scale), _mm512_loadu_ps(sums));
    if (w.has_offsets) v = _mm512_fmadd_ps(x.sum, _mm512_mul_ps(x.scale, w.other), v);
    _mm512_storeu_ps(sums, v);
  }
};

// A word holds four k of a column. Of 8 bits: two stored rows of pairs, k in order. Of 4 bits: four rows, whose low
// halves make one word, whose high halves the next: k = 0, 2, 4, 6 and 1, 3, 5, 7.
template <bool kNibbles>
struct StoredCodes : StoredRows {
  static constexpr int kGroups = kNibbles ? 2 : 1;
  void get(int64_t group, int, __m512i (*to)[4]) const {
    if constexpr (kNibbles)
      split_nibbles(2 * group, to);
    else
      join_pairs(at(2 * group), at(2 * group + 1), *to);
  }
  void split_nibbles(int64_t first_row, __m512i (*to)[4]) const {
    // Four columns at a time from sixteen at a lane's stride, so that joining lane by lane leaves them in order.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i rows[4], both[4];
    for (int i = 0; i < 4; ++i)
      rows[i] = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(at(first_row + i)));
    join_bytes(rows, both);
    const __m512i low = _mm512_set1_epi8(15);
    for (int v = 0; v < 4; ++v) {
      to[0][v] = _mm512_and_si512(both[v], low);
      to[1][v] = _mm512_and_si512(_mm512_srli_epi16(both[v], 4), low);
    }
  }
};

template <class Q>
class CodePieces {
 public:
  using Vec = Avx512;
  struct Mode {};
  static constexpr int kFewRows = kFewDotRows;
  static constexpr bool kNibbles = Q::kCodec.bits == 4;
  CodePieces(const MatMul& a, int64_t p, int stripe)
      : block_(a.block),
        panel_(a.panel),
        terms_(a.terms),
        unit_bytes_(Q::kCodec.unit_bytes(a.panel, a.block, a.terms)),
        w_(a.w + p * units_of(a.k, a.block) * unit_bytes_),
        stripe_(stripe),
        stored_{{nullptr, a.panel * Q::kCodec.pair_bytes(), a.block / 2}} {}

  static int64_t words_of(int64_t block) { return kNibbles ? (block + 7) / 8 * 2 : (block + 3) / 4; }
  static void pack(const MatMul& a, const Block& block, float* to) {
    const int64_t words = words_of(a.block);
    pack_blocks(a, block, words, to, [&](const int32_t* q, float* made) {
      int8_t bytes[kMaxPanelBlock];
      for (int64_t i = 0; i < words * 4; i += 4) {
        for (int64_t j = 0; j < 4; ++j)
          bytes[i + j] = static_cast<int8_t>(q[kNibbles ? i / 8 * 8 + i / 4 % 2 + 2 * j : i + j]);
      }
      std::memcpy(made, bytes, static_cast<std::size_t>(words * 4));
    });
  }
  int64_t piece() const { return block_; }
  void go(int64_t k, int64_t, bool fetches) {
    unit_ = k / block_;
    const std::byte* start = w_ + unit_ * unit_bytes_;
    const int64_t scale = scale_bytes(terms_), both = terms_bytes(terms_);
    scales_ = reinterpret_cast<const uint8_t*>(start) + stripe_ * scale;
    others_ = reinterpret_cast<const uint8_t*>(start) + panel_ * scale + stripe_ * (both - scale);
    stored_.first = start + panel_ * both + stripe_ * Q::kCodec.pair_bytes();
    ahead_ = fetches ? stored_.ahead() : nullptr;
  }
  void load() {
    for (int64_t g = 0; g < words_of(block_); g += stored_.kGroups) stored_.get(g, 0, &words_[g]);
  }
  void add(const Block& block, int64_t, float (*sums)[kStripe]) {
    const int64_t words = words_of(block_);
    const float* x = block.packed + unit_ * (words + 2) * block.rows;
    const CodeDots<Q::kCodec.bits> dots{x + words * block.rows, x + (words + 1) * block.rows, terms_, scales_,
                                        others_};
    run_block(dots, block.rows, reinterpret_cast<const int32_t*>(x), stored_, words_, words, ahead_, sums);
    ahead_ = nullptr;
  }

 private:
  int64_t block_, panel_, unit_ = 0;
  BlockTerms terms_;
  int64_t unit_bytes_;
  const std::byte* w_;
  int stripe_;
  const uint8_t *scales_ = nullptr, *others_ = nullptr;
  const char* ahead_ = nullptr;
  StoredCodes<kNibbles> stored_;
  __m512i words_[kMaxPanelBlock / 4][4];
};

}  // namespace

void matmul_int8_by_dots(const MatMul& a) {
  a.stored == DType::kU4 ? multiply_dots<CodePieces<U4Weights>>(a) : multiply_dots<CodePieces<U8Weights>>(a);
}

}  // namespace ark::simd
