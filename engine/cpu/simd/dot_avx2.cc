// Products of codes by AVX2, which has no instruction for them: by those that add up pairs of products in 16 or 32 bits
// where no sum can overflow.
#include <cstring>

#include "engine/cpu/simd/dot_matmul.h"
#include "engine/cpu/simd/vec_avx2.h"

namespace ark::simd {
namespace {

constexpr int kColumns = 8;                   // of a vector: a word of 32 bits each
constexpr int kVectors = kStripe / kColumns;  // of a stripe
// Rows that take the weight as it is stored; vectors at a time of words that are loaded. More than 2 * kFewWordRows
// rows are divided into blocks of more than kFewWordRows.
constexpr int kFewWordRows = 2, kTogether = 2;
static_assert((Avx2::kMaxRows + 1) / 2 > kFewWordRows);

// Not __m256i, which gcc 12 converts in loops, through memory.
using Integers [[gnu::vector_size(32)]] = int32_t;

// Keeps gcc 12 from multiplying for all sums before it adds to the first, which takes more registers than there are.
inline Integers settled(__m256i sum) {
  auto lanes = reinterpret_cast<Integers>(sum);
  asm("" : "+x"(lanes));
  return lanes;
}

// What words of 32 bits hold, of x and of the weight alike:
//   words_of(block)     how many
//   pack(q, words, to)  those of a row's integers
//   get(...)            kWordsAtOnce of some columns' vectors
//   dot(sum, w, x)      adds their products to what lanes of a run hold
//   kWordsOfRun         so many times before it could overflow
//   widened(all, run)   adds a run to the sums of 32 bits
template <class Q>
struct Words;

// 8 bits: two numbers of 16 bits, whose products are added up in 32.
template <>
struct Words<U8Weights> {
  static constexpr int64_t kWordsAtOnce = 1, kWordsOfRun = int64_t{1} << 30;
  static int64_t words_of(int64_t block) { return block / 2; }
  static void pack(const int32_t* q, int64_t words, float* made) {
    for (int64_t i = 0; i < words; ++i) {
      const int16_t pair[2] = {static_cast<int16_t>(q[2 * i]), static_cast<int16_t>(q[2 * i + 1])};
      std::memcpy(made + i, pair, sizeof pair);
    }
  }
  // Words `w` on of vectors [first, first + count), to[word][vector].
  template <int kCount, class To>
  static void get(const uint8_t* codes, int64_t panel, int64_t w, int64_t, int first, To to) {
    const uint8_t* const row = codes + (w * panel + first * kColumns) * 2;
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v)
      to(0, v,
         _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + v * kColumns * 2))));
  }
  static Integers dot(Integers sum, __m256i w, __m256i x) {
    return settled(_mm256_add_epi32(reinterpret_cast<__m256i>(sum), _mm256_madd_epi16(w, x)));
  }
  static Integers widened(Integers all, Integers run) { return all + run; }
};

// 4 bits: four bytes, k = 0, 2, 4, 6 or 1, 3, 5, 7 of eight. Two products are at most 2 * 15 * 127: eight such pairs
// add up in 16 bits.
template <>
struct Words<U4Weights> {
  static constexpr int64_t kWordsAtOnce = 2, kWordsOfRun = 8;
  static int64_t words_of(int64_t block) { return (block + 7) / 8 * 2; }
  static void pack(const int32_t* q, int64_t words, float* made) {
    for (int64_t i = 0; i < words; ++i) {
      int8_t bytes[4];
      for (int64_t b = 0; b < 4; ++b) bytes[b] = static_cast<int8_t>(q[i / 2 * 8 + i % 2 + b * 2]);
      std::memcpy(made + i, bytes, sizeof bytes);
    }
  }
  // Of a multiple of four vectors; of stored rows beyond `rows` the codes are zero.
  template <int kCount, class To>
  static void get(const uint8_t* codes, int64_t panel, int64_t w, int64_t rows, int first, To to) {
    // Dwords of a row so that joining lane by lane leaves columns in order.
    const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7), low = _mm256_set1_epi8(15);
#pragma GCC unroll 2
    for (int v = 0; v < kCount; v += 4) {
      const auto row = [&](int64_t i) {
        if (w * 2 + i >= rows) return _mm256_setzero_si256();
        const uint8_t* const at = codes + (w * 2 + i) * panel + (first + v) * kColumns;
        return _mm256_permutevar8x32_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), order);
      };
      const __m256i r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3);
      const __m256i low01 = _mm256_unpacklo_epi8(r0, r1), low23 = _mm256_unpacklo_epi8(r2, r3),
                    high01 = _mm256_unpackhi_epi8(r0, r1), high23 = _mm256_unpackhi_epi8(r2, r3);
      const __m256i both[4] = {_mm256_unpacklo_epi16(low01, low23), _mm256_unpackhi_epi16(low01, low23),
                               _mm256_unpacklo_epi16(high01, high23), _mm256_unpackhi_epi16(high01, high23)};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        to(0, v + i, _mm256_and_si256(both[i], low));
        to(1, v + i, _mm256_and_si256(_mm256_srli_epi16(both[i], 4), low));
      }
    }
  }
  static Integers dot(Integers sum, __m256i w, __m256i x) {
    return settled(_mm256_add_epi16(reinterpret_cast<__m256i>(sum), _mm256_maddubs_epi16(w, x)));
  }
  static Integers widened(Integers all, Integers run) {
    return all + reinterpret_cast<Integers>(
                     _mm256_madd_epi16(reinterpret_cast<__m256i>(run), _mm256_set1_epi16(1)));
  }
};

template <class Q>
class CodeWords {
 public:
  using Vec = Avx2;
  using W = Words<Q>;
  struct Mode {};
  static constexpr int kFewRows = kFewWordRows, kBlocks = kGroup, kUnit = 2;
  CodeWords(const MatMul& a, int64_t p, int stripe)
      : block_(a.block),
        panel_(a.panel),
        words_of_block_(W::words_of(a.block)),
        terms_(a.terms),
        unit_bytes_(Q::kCodec.unit_bytes(a.panel, a.block, a.terms)),
        w_(reinterpret_cast<const uint8_t*>(a.w) + p * units_of(a.k, a.block) * unit_bytes_),
        stripe_(stripe),
        lines_at_once_((unit_bytes_ / 64 * W::kWordsAtOnce + words_of_block_ - 1) / words_of_block_) {}

  static void pack(const MatMul& a, const Block& block, float* to) {
    const int64_t words = W::words_of(a.block);
    const auto make = [&](const int32_t* q, float* made) { W::pack(q, words, made); };
    for (int64_t k = 0; k < a.k; k += a.block, to += (words + 2) * block.rows)
      pack_block(a, block, k, words, to, make);
  }
  int64_t piece(int) const { return block_; }
  void go(int64_t k, int64_t, bool fetches) {
    unit_ = k / block_;
    const uint8_t* const start = w_ + unit_ * unit_bytes_;
    scales_ = start, others_ = start + panel_ * scale_bytes(terms_);
    codes_ = start + panel_ * terms_bytes(terms_) + stripe_ * Q::kCodec.pair_bytes();
    ahead_ = fetches ? reinterpret_cast<const char*>(start) + kAhead : nullptr;
  }
  void load() {
    for (int64_t w = 0; w < words_of_block_; w += W::kWordsAtOnce) {
      fetch();
      W::template get<kVectors>(codes_, panel_, w, block_ / 2, 0, [&](int64_t i, int v, __m256i word) {
        _mm256_store_si256(&words_[w + i][v], word);
      });
    }
    ahead_ = nullptr;
  }
  void add(const Block& block, int64_t, float (*sums)[kStripe]) {
    const auto* const x =
        reinterpret_cast<const int32_t*>(block.packed + unit_ * (words_of_block_ + 2) * block.rows);
    add_rows(block.rows, x, sums);
  }

 private:
  // A few lines of what comes kAhead later, with each of the unit's words: all at once would wait for each other.
  void fetch() {
    if (!ahead_) return;
    for (int64_t i = 0; i < lines_at_once_; ++i, ahead_ += 64) Avx2::prefetch(ahead_);
  }

  template <int R = Avx2::kMaxRows>
  void add_rows(int rows, const int32_t* x, float (*sums)[kStripe]) {
    if (rows == R) {
      if constexpr (R <= kFewWordRows)
        add_stored<R>(x, sums);
      else
        add_loaded<R>(x, sums);
    } else if constexpr (R > 1) {
      add_rows<R - 1>(rows, x, sums);
    }
  }

  // Few rows: words are made as they are multiplied, four vectors of them at a time.
  template <int R>
  void add_stored(const int32_t* x, float (*sums)[kStripe]) {
    constexpr int kFour = 4;
    for (int first = 0; first < kVectors; first += kFour) {
      Integers all[R][kFour]{};
      for (int64_t w = 0; w < words_of_block_;) {
        Integers run[R][kFour]{};
        for (const int64_t last = std::min(words_of_block_, w + W::kWordsOfRun); w < last;
             w += W::kWordsAtOnce) {
          fetch();
          W::template get<kFour>(codes_, panel_, w, block_ / 2, first, [&](int64_t i, int v, __m256i word) {
#pragma GCC unroll 2
            for (int r = 0; r < R; ++r)
              run[r][v] = W::dot(run[r][v], word, _mm256_set1_epi32(x[(w + i) * R + r]));
          });
        }
        widen(all, run);
      }
      end(all, first, x, sums);
      ahead_ = nullptr;
    }
  }

  template <int R>
  void add_loaded(const int32_t* x, float (*sums)[kStripe]) {
    for (int first = 0; first < kVectors; first += kTogether) {
      Integers all[R][kTogether]{};
      for (int64_t w = 0; w < words_of_block_;) {
        Integers run[R][kTogether]{};
        for (const int64_t last = std::min(words_of_block_, w + W::kWordsOfRun); w < last; ++w) {
          const __m256i a = words_[w][first], b = words_[w][first + 1];
#pragma GCC unroll 6
          for (int r = 0; r < R; ++r) {
            const __m256i xv = _mm256_set1_epi32(x[w * R + r]);
            run[r][0] = W::dot(run[r][0], a, xv);
            run[r][1] = W::dot(run[r][1], b, xv);
          }
        }
        widen(all, run);
      }
      end(all, first, x, sums);
    }
  }

  template <int R, int C>
  static void widen(Integers (&all)[R][C], const Integers (&run)[R][C]) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) all[r][c] = W::widened(all[r][c], run[r][c]);
    }
  }

  __m256 terms_at(const uint8_t* terms, int column) const {
    if (has_halves(terms_))
      return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(terms + column * 2)));
    return _mm256_loadu_ps(reinterpret_cast<const float*>(terms) + column);
  }

  // All but the last two steps are of integers below 2^23: exact.
  template <int R, int C>
  void end(const Integers (&all)[R][C], int first, const int32_t* x, float (*sums)[kStripe]) const {
    const float* const x_terms = reinterpret_cast<const float*>(x + words_of_block_ * R);
    const bool with_zeros = has_zeros(terms_);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const int column = (first + c) * kColumns;
      const __m256 scale = terms_at(scales_, stripe_ + column);
      const __m256 other = terms_ == BlockTerms::kScales16 ? _mm256_set1_ps(middle_of(Q::kCodec.bits))
                           : with_zeros ? _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(
                                              reinterpret_cast<const __m128i*>(others_ + stripe_ + column))))
                                        : terms_at(others_, stripe_ + column);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const __m256 x_scale = _mm256_set1_ps(x_terms[r]), x_sum = _mm256_set1_ps(x_terms[R + r]);
        float* const to = sums[r] + column;
        __m256 whole = _mm256_cvtepi32_ps(reinterpret_cast<__m256i>(all[r][c]));
        if (with_zeros) whole = _mm256_fnmadd_ps(other, x_sum, whole);
        __m256 v = _mm256_fmadd_ps(whole, _mm256_mul_ps(x_scale, scale), _mm256_loadu_ps(to));
        if (!with_zeros) v = _mm256_fmadd_ps(x_sum, other, v);
        _mm256_storeu_ps(to, v);
      }
    }
  }

  int64_t block_, panel_, words_of_block_, unit_ = 0;
  BlockTerms terms_;
  int64_t unit_bytes_;
  const uint8_t* w_;
  int stripe_;
  int64_t lines_at_once_;
  const char* ahead_ = nullptr;
  const uint8_t *scales_ = nullptr, *others_ = nullptr, *codes_ = nullptr;
  alignas(64) __m256i words_[kMaxPanelBlock / 4][kVectors];
};

}  // namespace

void matmul_int8_by_words(const MatMul& a) {
  a.stored == DType::kU4 ? multiply_dots<CodeWords<U4Weights>>(a) : multiply_dots<CodeWords<U8Weights>>(a);
}

}  // namespace ark::simd
