// Products of codes by vpdpbusd.
#include "engine/cpu/simd/dot_avx512.h"
#include "engine/cpu/simd/quantize_vnni.h"

namespace ark::simd {
namespace {

// What lanes are before a block of many rows, and whether that leaves columns' zeros to be taken off.
struct Start {
  alignas(64) int32_t rows[16];
  bool has_zeros;
};

template <int bits, bool kStarts>
struct CodeDots {
  // Of codes a group is bits / 2 lines. Many blocks of rows fetch the next piece together, while they multiply.
  static constexpr int kLines = kStarts ? 1 : bits / 2, kTerms = 2;
  const float* x_terms;  // scales of the rows, then sum_term()
  int64_t rows, x_step;  // from one block's to the next one's
  BlockTerms terms;
  const uint8_t *scales, *others;  // of the columns
  int64_t unit_bytes;
  const Start* start;  // if kStarts

  static void fetch(const char* p) { kStarts ? Avx512::prefetch_l2(p) : Avx512::prefetch(p); }
  // Not __m512i, which gcc 12 converts in the loop, through memory.
  using Lanes [[gnu::vector_size(64)]] = int32_t;
  void next() {
    x_terms += x_step, scales += unit_bytes, others += unit_bytes;
    if constexpr (kStarts) ++start;
  }
  Lanes begin(const float*, int row) const {
    if constexpr (kStarts) return Lanes{} + start->rows[row];
    return Lanes{};
  }
  static Lanes dot(Lanes sum, __m512i x, __m512i w) {
    return reinterpret_cast<Lanes>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), w, x));
  }
  // All but the last two steps are of integers below 2^23: exact.
  template <int R, int C>
  void end(const Lanes (&lanes)[R][C], int column, float (*sums)[kStripe]) const {
    if (!has_zeros(terms)) return end<R, C, false, true>(lanes, column, sums);
    if constexpr (kStarts) {
      if (!start->has_zeros) return end<R, C, false, false>(lanes, column, sums);
    }
    end<R, C, true, false>(lanes, column, sums);
  }
  template <int R, int C, bool kZeros, bool kOffsets>
  void end(const Lanes (&lanes)[R][C], int column, float (*sums)[kStripe]) const {
    __m512 scale[C], other[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      scale[c] = load_terms<Avx512>(terms, scales, column + c * 16);
      if constexpr (kZeros)
        other[c] = terms == BlockTerms::kZeros ? Avx512::load_u8(others + column + c * 16)
                                               : _mm512_set1_ps(middle_of(bits));
      if constexpr (kOffsets) other[c] = load_terms<Avx512>(terms, others, column + c * 16);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512 x_scale = _mm512_set1_ps(x_terms[r]), x_sum = _mm512_set1_ps(x_terms[rows + r]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        float* const to = sums[r] + column + c * 16;
        __m512 whole = _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(lanes[r][c]));
        if constexpr (kZeros) whole = _mm512_fnmadd_ps(other[c], x_sum, whole);
        __m512 v = _mm512_fmadd_ps(whole, _mm512_mul_ps(x_scale, scale[c]), _mm512_loadu_ps(to));
        if constexpr (kOffsets) v = _mm512_fmadd_ps(x_sum, other[c], v);
        _mm512_storeu_ps(to, v);
      }
    }
  }
};

template <class Q>
class CodePieces {
 public:
  using Vec = Avx512;
  static constexpr int kLines = Q::kCodec.bits / 2;
  struct Mode {};
  static constexpr int kFewRows = kFewDotRows, kBlocks = kDotBlocks, kUnit = 2;
  static constexpr bool kNibbles = Q::kCodec.bits == 4;
  CodePieces(const MatMul& a, int64_t p, int stripe)
      : block_(a.block),
        panel_(a.panel),
        terms_(a.terms),
        unit_bytes_(Q::kCodec.unit_bytes(a.panel, a.block, a.terms)),
        w_(a.w + p * units_of(a.k, a.block) * unit_bytes_),
        stripe_(stripe),
        stored_{{nullptr, a.panel * Q::kCodec.pair_bytes(), a.block / 2}} {}

  static void pack(const MatMul& a, const Block& block, float* to) {
    const int64_t words = StoredCodes<kNibbles>::words_of(a.block);
    const auto make = [&](const int32_t* q, float* made) {
      int8_t bytes[kMaxPanelBlock];
      for (int64_t i = 0; i < words * 4; ++i)
        bytes[i] = static_cast<int8_t>(q[StoredCodes<kNibbles>::k_of(i)]);
      std::memcpy(made, bytes, static_cast<std::size_t>(words * 4));
    };
    const float* x = a.x + block.row * a.k;
    for (int64_t k = 0; k < a.k; k += a.block, to += (words + 2) * block.rows) {
      const bool is_whole = a.block % 32 == 0 && k + a.block <= a.k;
      if (!is_whole || !quantize_block<kNibbles>(x + k, a.k, block.rows, a.block, a.terms, to))
        pack_block(a, block, k, words, to, make);
    }
  }
  int64_t piece(int blocks) const {
    return blocks > kBlocksOfShortPiece ? kLongPiece / 4 / StoredCodes<kNibbles>::words_of(block_) * block_
                                        : block_;
  }
  void go(int64_t k, int64_t n, bool fetches) {
    unit_ = k / block_;
    units_ = (n + block_ - 1) / block_;
    const std::byte* start = w_ + unit_ * unit_bytes_;
    const int64_t scale = scale_bytes(terms_), both = terms_bytes(terms_);
    scales_ = reinterpret_cast<const uint8_t*>(start) + stripe_ * scale;
    others_ = reinterpret_cast<const uint8_t*>(start) + panel_ * scale + stripe_ * (both - scale);
    stored_.first = start + panel_ * both + stripe_ * Q::kCodec.pair_bytes();
    ahead_ = fetches ? stored_.ahead() : nullptr;
    next_ = fetches ? reinterpret_cast<const char*>(start) + units_ * unit_bytes_ : nullptr;
    turn_ = 0;
  }
  void load() {
    StoredCodes<kNibbles> unit = stored_;
    __m512i(*to)[4] = words_;
    for (int64_t u = 0; u < units_; ++u, unit.first += unit_bytes_) {
      for (int64_t g = 0; g < StoredCodes<kNibbles>::words_of(block_); g += unit.kGroups, to += unit.kGroups)
        unit.get(g, 0, to);
    }
  }
  void add(const Block& block, int64_t, float (*sums)[kStripe]) {
    if (units_ > 1) {
      find_starts(block);
      const int64_t words = units_ * StoredCodes<kNibbles>::words_of(block_);
      const bool fetches = next_ && turn_ <= kLines;  // the terms are a turn more
      run<true, kLeastRowsOfMany>(block, fetches ? next_ + turn_++ * words * 64 : nullptr, sums);
    } else {
      run<false, 1>(block, ahead_, sums);
      ahead_ = nullptr;
    }
  }

 private:
  // Where all columns' zeros are one number, sums begin without them.
  void find_starts(const Block& block) {
    const int64_t words = StoredCodes<kNibbles>::words_of(block_), step = (words + 2) * block.rows;
    const float* x_sums = block.packed + (unit_ + 1) * step - block.rows;
    const uint8_t* zeros = others_;
    for (int64_t u = 0; u < units_; ++u, x_sums += step, zeros += unit_bytes_) {
      int32_t zero = terms_ == BlockTerms::kScales16 ? middle_of(Q::kCodec.bits) : 0;
      starts_[u].has_zeros = false;
      if (terms_ == BlockTerms::kZeros) {
        const __m512i first = _mm512_set1_epi8(static_cast<char>(*zeros));
        starts_[u].has_zeros = _mm512_cmpneq_epu8_mask(_mm512_loadu_si512(zeros), first);
        zero = starts_[u].has_zeros ? 0 : *zeros;
      }
      _mm512_store_si512(starts_[u].rows, _mm512_mullo_epi32(_mm512_cvtps_epi32(_mm512_loadu_ps(x_sums)),
                                                             _mm512_set1_epi32(-zero)));
    }
  }
  template <bool kStarts, int kLeast>
  void run(const Block& block, const char* ahead, float (*sums)[kStripe]) {
    const int64_t words = StoredCodes<kNibbles>::words_of(block_), step = (words + 2) * block.rows;
    const float* x = block.packed + unit_ * step;
    using Dots = CodeDots<Q::kCodec.bits, kStarts>;
    const Dots dots{x + words * block.rows, block.rows, step, terms_, scales_, others_, unit_bytes_, starts_};
    run_block<Dots, StoredCodes<kNibbles>, kLeast>(dots, block.rows, reinterpret_cast<const int32_t*>(x),
                                                   stored_, words_, units_, words, ahead, sums);
  }

  int64_t block_, panel_, unit_ = 0, units_ = 0;
  BlockTerms terms_;
  int64_t unit_bytes_;
  const std::byte* w_;
  int stripe_;
  const uint8_t *scales_ = nullptr, *others_ = nullptr;
  const char *ahead_ = nullptr, *next_ = nullptr;  // of few rows: kAhead later; of many: the next piece
  int64_t turn_ = 0;                               // blocks that have fetched of it
  StoredCodes<kNibbles> stored_;
  __m512i words_[kLongPiece / 4][4];
  Start starts_[kLongPiece / kMinPanelBlock];
};

}  // namespace

void matmul_int8_by_dots(const MatMul& a) {
  a.stored == DType::kU4 ? multiply_dots<CodePieces<U4Weights>>(a) : multiply_dots<CodePieces<U8Weights>>(a);
}

}  // namespace ark::simd
