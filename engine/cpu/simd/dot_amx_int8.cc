// Products of codes by tdpbssd and tdpbsud: the integers of dot_avx512_vnni.cc, so the same bits.
#include <algorithm>

#include "engine/cpu/simd/dot_amx.h"
#include "engine/cpu/simd/dot_avx512.h"
#include "engine/cpu/simd/quantize_vnni.h"

namespace ark::simd {

void matmul_int8_by_dots(const MatMul& a);  // dot_avx512_vnni.cc

namespace {

// Else tiles are too empty: at 16 and at 32 rows they take 0.97 and 0.72 of what vectors do, at 12 and 24 rows 1.25
// and 1.1.
bool fill_tiles(int64_t rows) {
  return rows >= kTileRows && rows * 5 >= (rows + 15) / kTileRows * kTileRows * 4;
}

// To the tile of sums of that number.
template <int kTile, bool kIsSigned>
void add_products() {
  constexpr int kX = 4 + kTile % 2, kW = 6 + kTile % 2;
  if constexpr (kIsSigned)
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kTile), "i"(kX), "i"(kW));
  else
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kTile), "i"(kX), "i"(kW));
}

// How columns' zeros are taken off.
enum class Zeros {
  kOffCodes,  // before: codes fit 8 bits with a sign then
  kOffSums,
  kNone,  // there are offsets instead
};

template <class Q>
class TiledCodes {
 public:
  explicit TiledCodes(const MatMul& a)
      : a_(a),
        unit_bytes_(Q::kCodec.unit_bytes(a.panel, a.block, a.terms)),
        words_(Codes::words_of(a.block)),
        tile_words_(std::min<int64_t>(16, words_)) {
    while (words_ % tile_words_ != 0) --tile_words_;
  }

  void run() {
    const Tiles tiles(static_cast<int>(tile_words_));
    multiply_packed<kTileBlocks, true>(
        a_, kTileRows, units_of(a_.k, a_.block) * unit_size() / kTileRows,
        [&](const Block& block, float* to) { pack(block, to); },
        [&](const MatMul&, const Block* blocks, int count, int64_t p, int stripe, bool fetches) {
          multiply_stripe(blocks, count, p, stripe, fetches);
        });
  }

 private:
  static constexpr bool kNibbles = Q::kCodec.bits == 4;
  using Codes = StoredCodes<kNibbles>;

  // ---- x by blocks of the weight: integers as [tile of words][16 rows][words of a tile], then scales [16], then
  // sum_term() [16]

  int64_t unit_size() const { return (words_ + 2) * kTileRows; }
  // Where four integers of a row lie.
  int32_t* word(float* unit, int64_t row, int64_t at) const {
    return reinterpret_cast<int32_t*>(unit) + (at / tile_words_ * kTileRows + row) * tile_words_ +
           at % tile_words_;
  }

  void pack(const Block& block, float* to) const {
    const float* rows[16];
    const bool fits = a_.block % 32 == 0 && tile_words_ % 8 == 0;
    for (int64_t k = 0; k < a_.k; k += a_.block, to += unit_size()) {
      for (int64_t r = 0; r < 16; ++r)
        rows[r] = a_.x + (block.row + std::min<int64_t>(r, block.rows - 1)) * a_.k + k;
      float *scales = to + words_ * kTileRows, *sums = scales + kTileRows;
      Quantizers by;
      if (fits && k + a_.block <= a_.k && find_quantizers(rows, a_.block, by)) {
        _mm512_storeu_ps(scales, by.scales);
        for (int r = 0; r < block.rows; ++r)
          sums[r] = sum_term(a_.terms, scales[r], quantize_row(rows[r], by.factors[r], to, r));
      } else {
        for (int r = 0; r < block.rows; ++r)
          quantize_slowly(rows[r], std::min<int64_t>(a_.block, a_.k - k), to, r);
      }
      // What is not there adds nothing, at no cost.
      std::fill(scales + block.rows, scales + kTileRows, 0.f);
      std::fill(sums + block.rows, sums + kTileRows, 0.f);
    }
  }
  int32_t quantize_row(const float* x, float by, float* to, int row) const {
    // Of nibbles a word holds every second number.
    const __m128i order = kNibbles ? _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
                                   : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 factor = _mm512_set1_ps(by);
    __m512i all = _mm512_setzero_si512();
    for (int64_t i = 0; i < a_.block; i += 32) {
      int32_t* const words = word(to, row, i / 4);
      for (int half = 0; half < 2; ++half) {
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i + half * 16), factor));
        all = _mm512_add_epi32(all, q);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(words + half * 4),
                         _mm_shuffle_epi8(_mm512_cvtepi32_epi8(q), order));
      }
    }
    return _mm512_reduce_add_epi32(all);
  }
  void quantize_slowly(const float* x, int64_t n, float* to, int row) const {
    int32_t q[kMaxPanelBlock] = {}, sum = 0;
    const float scale = to[words_ * kTileRows + row] = quantize(x, n, q);
    for (int64_t i = 0; i < n; ++i) sum += q[i];
    to[(words_ + 1) * kTileRows + row] = sum_term(a_.terms, scale, sum);
    for (int64_t i = 0; i < words_ * 4; i += 4) {
      int8_t bytes[4];
      for (int64_t j = 0; j < 4; ++j) bytes[j] = static_cast<int8_t>(q[Codes::k_of(i + j)]);
      std::memcpy(word(to, row, i / 4), bytes, sizeof bytes);
    }
  }

  // ---- a piece of a stripe of the weight: some units

  struct Piece {
    const uint8_t *scales, *others;  // terms of the first unit's columns
    int64_t unit, count;
  };
  static constexpr int64_t kMostWords = kLongPiece / 4;
  static constexpr int64_t kMostUnits = kLongPiece / kMinPanelBlock;

  // Joins the codes to words, and takes off zeros that it can.
  void load(const Piece& piece, const Codes& first, bool fetches) {
    Codes unit = first;
    int64_t to = 0;
    for (int64_t u = 0; u < piece.count; ++u, unit.first += unit_bytes_) {
      const uint8_t* others = piece.others + u * unit_bytes_;
      const bool in_middle = a_.terms == BlockTerms::kScales16;
      zeros_[u] = in_middle                        ? Zeros::kOffCodes
                  : a_.terms == BlockTerms::kZeros ? zeros_of(others)
                                                   : Zeros::kNone;
      __m512i zeros[4];
      for (int v = 0; v < 4; ++v) {
        const __m128i bytes = in_middle ? _mm_set1_epi8(static_cast<char>(middle_of(Q::kCodec.bits)))
                                        : _mm_loadu_si128(reinterpret_cast<const __m128i*>(others) + v);
        zeros[v] = zeros_[u] == Zeros::kOffCodes
                       ? _mm512_mullo_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(0x01010101))
                       : _mm512_setzero_si512();
      }
      for (int64_t g = 0; g < words_; g += Codes::kGroups, to += Codes::kGroups) {
        if (fetches) fetch(unit.ahead() + g * kLines * 64, kLines * Codes::kGroups);
        __m512i words[Codes::kGroups][4];
        unit.get(g, 0, words);
        for (int i = 0; i < Codes::kGroups; ++i) {
          for (int v = 0; v < 4; ++v) joined_[v][to + i] = _mm512_sub_epi8(words[i][v], zeros[v]);
        }
      }
    }
  }
  static Zeros zeros_of(const uint8_t* zeros) {  // of four bits they are below 16
    const __mmask64 others = _mm512_cmpneq_epu8_mask(_mm512_loadu_si512(zeros), _mm512_set1_epi8(-128));
    return kNibbles || others == 0 ? Zeros::kOffCodes : Zeros::kOffSums;
  }

  // Units of a block of rows and sixteen columns, of which as many are multiplied at once as there are tiles of sums.
  struct Units {
    const float* x;
    const __m512i* w;
    const uint8_t *scales, *others;
    int64_t first, count;
  };
  static constexpr int kAtOnce = 4;

  template <int kTile, bool kIsSigned>
  void multiply_unit(const Units& units) const {
    const auto* x = reinterpret_cast<const int32_t*>(units.x + kTile * unit_size());
    const __m512i* w = units.w + kTile * words_;
    clear_tile<kTile>();
    for (int64_t at = 0; at < words_; at += tile_words_, x += kTileRows * tile_words_, w += tile_words_) {
      load_tile<4 + kTile % 2>(x, tile_words_ * 4);
      load_tile<6 + kTile % 2>(w, 64);
      add_products<kTile, kIsSigned>();
    }
  }
  template <int kTile = 0>
  void multiply_units(const Units& units) const {
    if constexpr (kTile < kAtOnce) {
      if (kTile >= units.count) return;
      zeros_[units.first + kTile] == Zeros::kOffCodes ? multiply_unit<kTile, true>(units)
                                                      : multiply_unit<kTile, false>(units);
      multiply_units<kTile + 1>(units);
    }
  }
  using Integers = int32_t[kTileRows * kTileColumns];
  template <int kTile = 0>
  static void store_units(const Units& units, Integers* to) {
    if constexpr (kTile < kAtOnce) {
      if (kTile >= units.count) return;
      store_tile<kTile>(to[kTile], 64);
      store_units<kTile + 1>(units, to);
    }
  }

  // What the piece adds to the sums of a block's rows, sixteen columns. While the vectors of some units are at work, so
  // are the tiles of the next ones.
  void add_columns(const Block& block, const Piece& piece, int column, float* sums) {
    __m512 all[kTileRows];
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) all[r] = _mm512_load_ps(sums + r * kStripe);
    Units units{block.packed + piece.unit * unit_size(), joined_[column], piece.scales, piece.others, 0,
                std::min<int64_t>(kAtOnce, piece.count)};
    multiply_units(units);
    for (int turn = 0; units.count > 0; turn ^= 1) {
      store_units(units, integers_[turn]);
      Units next = units;
      next.first += units.count;
      next.count = std::min<int64_t>(kAtOnce, piece.count - next.first);
      next.x += units.count * unit_size(), next.w += units.count * words_;
      next.scales += units.count * unit_bytes_, next.others += units.count * unit_bytes_;
      multiply_units(next);
      for (int64_t u = 0; u < units.count; ++u) {
        const int32_t* const integers = integers_[turn][u];
        const float* const terms = units.x + u * unit_size() + words_ * kTileRows;
        const uint8_t *scales = units.scales + u * unit_bytes_, *others = units.others + u * unit_bytes_;
        const Zeros zeros = zeros_[units.first + u];
        if (zeros == Zeros::kOffCodes)
          add_unit<Zeros::kOffCodes>(integers, terms, scales, others, column, all);
        else if (zeros == Zeros::kOffSums)
          add_unit<Zeros::kOffSums>(integers, terms, scales, others, column, all);
        else
          add_unit<Zeros::kNone>(integers, terms, scales, others, column, all);
      }
      units = next;
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(sums + r * kStripe, all[r]);
  }
  // As CodeDots::end() of dot_avx512_vnni.cc.
  template <Zeros kZeros>
  void add_unit(const int32_t* integers, const float* x_terms, const uint8_t* scales, const uint8_t* others,
                int column, __m512 (&all)[kTileRows]) const {
    const __m512 scale = load_terms<Avx512>(a_.terms, scales, column * 16);
    __m512 other = scale;
    if constexpr (kZeros == Zeros::kOffSums) other = Avx512::load_u8(others + column * 16);
    if constexpr (kZeros == Zeros::kNone) other = load_terms<Avx512>(a_.terms, others, column * 16);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      const __m512 x_scale = _mm512_set1_ps(x_terms[r]), x_sum = _mm512_set1_ps(x_terms[kTileRows + r]);
      __m512 whole = _mm512_cvtepi32_ps(_mm512_load_si512(integers + r * kTileColumns));
      if constexpr (kZeros == Zeros::kOffSums) whole = _mm512_fnmadd_ps(other, x_sum, whole);
      all[r] = _mm512_fmadd_ps(whole, _mm512_mul_ps(x_scale, scale), all[r]);
      if constexpr (kZeros == Zeros::kNone) all[r] = _mm512_fmadd_ps(x_sum, other, all[r]);
    }
  }

  // One stripe of one panel for some blocks of rows.
  void multiply_stripe(const Block* blocks, int count, int64_t p, int stripe, bool fetches) {
    Sums<kTileRows> sums[kTileBlocks];
    const std::byte* w = a_.w + p * units_of(a_.k, a_.block) * unit_bytes_;
    const int64_t scale = scale_bytes(a_.terms), both = terms_bytes(a_.terms);
    const int64_t most = std::max<int64_t>(1, kMostWords / words_);
    for (int32_t slab = 0; slab < a_.slab_count; ++slab) {
      for (int b = 0; b < count; ++b) std::fill_n(sums[b].at[0][0], kTileRows * kStripe, 0.f);
      const int64_t end = units_of(a_.slabs[slab + 1], a_.block);
      for (int64_t u = a_.slabs[slab] / a_.block, n; u < end; u += n) {
        n = std::min(most, end - u);
        const std::byte* start = w + u * unit_bytes_;
        const auto* terms = reinterpret_cast<const uint8_t*>(start);
        const Piece piece{terms + stripe * scale, terms + a_.panel * scale + stripe * (both - scale), u, n};
        const Codes codes{{start + a_.panel * both + stripe * Q::kCodec.pair_bytes(),
                           a_.panel * Q::kCodec.pair_bytes(), a_.block / 2}};
        load(piece, codes, fetches);
        for (int b = 0; b < count; ++b) {
          for (int column = 0; column < 4; ++column)
            add_columns(blocks[b], piece, column, sums[b].at[0][0] + column * 16);
        }
      }
      for (int b = 0; b < count; ++b)
        end_slab<Avx512>(sums[b], slab, slab + 1 == a_.slab_count, blocks[b].rows, kStripe);
    }
    for (int b = 0; b < count; ++b)
      finish_rows<Avx512, true>(a_, blocks[b], p * a_.panel + stripe, kStripe, sums[b].at[0]);
  }

  static constexpr int kLines = Q::kCodec.bits / 2;
  const MatMul& a_;
  int64_t unit_bytes_, words_, tile_words_;
  alignas(64) Integers integers_[2][kAtOnce];
  __m512i joined_[4][kMostWords];
  Zeros zeros_[kMostUnits];
};

}  // namespace

void matmul_int8_by_tiles(const MatMul& a) {
  if (!fill_tiles(a.last_row - a.first_row)) return matmul_int8_by_dots(a);
  a.stored == DType::kU4 ? TiledCodes<U4Weights>(a).run() : TiledCodes<U8Weights>(a).run();
}

}  // namespace ark::simd
