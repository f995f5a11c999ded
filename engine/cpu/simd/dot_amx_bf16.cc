// bf16 products by tdpbf16ps.
#include "engine/cpu/simd/dot_amx.h"
#include "engine/cpu/simd/dot_avx512.h"
#include "engine/cpu/simd/pack_avx512.h"

namespace ark::simd {
namespace {

constexpr int64_t kChunk = 32;  // rows of k that one instruction multiplies

int64_t chunks_of(int64_t k) { return (k + kChunk - 1) / kChunk; }

// Sixteen rows of x as [chunk][16 rows][32]; rows that are not there stay as they are.
void pack(const MatMul& a, const Block& block, float* to) {
  for (int32_t slab = 0; slab < a.slab_count; ++slab) {
    const int64_t n = a.slabs[slab + 1] - a.slabs[slab];
    const float* x = a.x + block.row * a.k + a.slabs[slab];
    for (int64_t k = 0; k < n; k += kChunk, to += kTileBytes / 4) {
      for (int r = 0; r < block.rows; ++r) {
        const float* p = x + r * a.k + k;
        const bool whole = k + kChunk <= n;
        const __m512 low = whole ? _mm512_loadu_ps(p) : load_first(p, n - k),
                     high = whole ? _mm512_loadu_ps(p + 16) : load_first(p + 16, n - k - 16);
        _mm512_storeu_si512(to + r * 16, std::bit_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
      }
    }
  }
}

// A piece of a stripe of the weight: of each half of its columns by chunks two tiles of words, one after the other, as
// they are read. So long that it stays in the first-level cache beside two blocks of x while all of these pass by.
constexpr int64_t kPieceRows = 160;
struct JoinedPiece {
  alignas(64) __m512i words[2][kPieceRows / kChunk][2][kTileRows];

  // From where `stored` begins; the last chunk is padded. Lanes of two tiles take turns with four columns each, as
  // joining leaves them.
  void load(const StoredRows& stored, int64_t chunks, bool fetches) {
    for (int64_t g = 0; g < chunks * kTileRows; ++g) {
      if (fetches) fetch(stored.ahead() + g * 256, 4);
      for (int half = 0; half < 2; ++half) {
        const __m512i even = _mm512_loadu_si512(stored.at(2 * g) + 64 * half),
                      odd = _mm512_loadu_si512(stored.at(2 * g + 1) + 64 * half);
        auto& tiles = words[half][g / kTileRows];
        tiles[0][g % kTileRows] = _mm512_unpacklo_epi16(even, odd);
        tiles[1][g % kTileRows] = _mm512_unpackhi_epi16(even, odd);
      }
    }
  }
};

// Sums as JoinedPiece orders columns -> in their order.
void order_columns(int rows, float (*sums)[kStripe]) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
                second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < kStripe; c += 32) {
      const __m512 low = _mm512_load_ps(sums[r] + c), high = _mm512_load_ps(sums[r] + c + 16);
      _mm512_store_ps(sums[r] + c, _mm512_permutex2var_ps(low, first, high));
      _mm512_store_ps(sums[r] + c + 16, _mm512_permutex2var_ps(low, second, high));
    }
  }
}

// Fetches a range into the second-level cache, in so many turns.
class Fetcher {
 public:
  Fetcher(const void* from, int64_t bytes, int64_t turns)
      : at_(static_cast<const char*>(from)), end_(at_ + bytes), step_(bytes / turns + 64) {}
  void turn() {
    for (const char* const end = std::min(at_ + step_, end_); at_ < end; at_ += 64) Avx512::prefetch_l2(at_);
  }

 private:
  const char *at_, *end_;
  int64_t step_;
};

// What some chunks of a block of rows add to its sums of all 64 columns, which are tiles 0 to 3.
void add_stripe(const float* x, const JoinedPiece& w, int64_t chunks) {
  for (int64_t i = 0; i < chunks; ++i, x += kTileBytes / 4) {
    load_tile<4>(x, 64);
    load_tile<6>(w.words[0][i][0], 64);
    add_bf16_products<0, 4, 6>();
    load_tile<7>(w.words[0][i][1], 64);
    add_bf16_products<1, 4, 7>();
    load_tile<6>(w.words[1][i][0], 64);
    add_bf16_products<2, 4, 6>();
    load_tile<7>(w.words[1][i][1], 64);
    add_bf16_products<3, 4, 7>();
  }
}

// The same of two blocks and half of the columns: half as much is loaded a product.
void add_two(const float* x0, const float* x1, const __m512i (*w)[2][kTileRows], int64_t chunks,
             Fetcher& next) {
  for (int64_t i = 0; i < chunks; ++i, x0 += kTileBytes / 4, x1 += kTileBytes / 4, ++w) {
    next.turn();
    load_tile<4>(x0, 64);
    load_tile<6>((*w)[0], 64);
    load_tile<7>((*w)[1], 64);
    add_bf16_products<0, 4, 6>();
    load_tile<5>(x1, 64);
    add_bf16_products<1, 4, 7>();
    add_bf16_products<2, 5, 6>();
    add_bf16_products<3, 5, 7>();
  }
}

// Four tiles of sums: cleared, or as they were stored.
void begin(const float* a, const float* b, const float* c, const float* d, bool opens) {
  constexpr int64_t kStride = kStripe * sizeof(float);
  if (opens) {
    clear_tile<0>(), clear_tile<1>(), clear_tile<2>(), clear_tile<3>();
  } else {
    load_tile<0>(a, kStride), load_tile<1>(b, kStride), load_tile<2>(c, kStride), load_tile<3>(d, kStride);
  }
}
void end(float* a, float* b, float* c, float* d) {
  constexpr int64_t kStride = kStripe * sizeof(float);
  store_tile<0>(a, kStride), store_tile<1>(b, kStride), store_tile<2>(c, kStride), store_tile<3>(d, kStride);
}

// One stripe of one panel for some blocks of rows.
void multiply_tiles(const MatMul& a, const Block* blocks, int count, int64_t p, int stripe, bool fetches) {
  Sums<kTileRows> sums[kTileBlocks];
  JoinedPiece piece;
  StoredRows stored{nullptr, a.panel * int64_t{2}, 0};
  const std::byte* w = a.w + (p * a.k * a.panel + stripe) * 2;
  int64_t at = 0;  // chunks before the piece
  for (int32_t slab = 0; slab < a.slab_count; ++slab) {
    const int64_t first = a.slabs[slab], last = a.slabs[slab + 1];
    const bool is_last = slab + 1 == a.slab_count;
    // As long as each other, of whole chunks; short where nothing is read twice.
    const int64_t limit = count == 1 ? kPiece : kPieceRows,
                  pieces = std::max<int64_t>(1, (last - first + limit - 1) / limit),
                  most = chunks_of((last - first + pieces - 1) / pieces) * kChunk;
    int64_t k = first;
    do {  // an empty slab sums to zero
      const int64_t n = std::min(most, last - k), chunks = chunks_of(n);
      const bool opens = k == first, closes = k + n == last;
      stored.first = w + k * stored.stride;
      stored.count = n;
      piece.load(stored, chunks, fetches && count == 1);
      const auto x = [&](int b) { return blocks[b].packed + at * (kTileBytes / 4); };
      const auto close = [&](int b) {
        if (!closes) return;
        end_slab<Avx512>(sums[b], slab, is_last, blocks[b].rows, kStripe);
        if (!is_last) return;
        order_columns(blocks[b].rows, sums[b].at[0]);
        finish_rows<Avx512, true>(a, blocks[b], p * a.panel + stripe, kStripe, sums[b].at[0]);
      };
      // What is joined next, which mostly follows.
      Fetcher next(stored.first + n * stored.stride, fetches ? most * stored.stride : 0,
                   std::max<int64_t>(1, count / 2 * 2 * chunks));
      int b = 0;
      for (; b + 1 < count; b += 2) {
        for (int half = 0; half < 2; ++half) {
          float *upper = sums[b].at[0][0] + half * 32, *lower = sums[b + 1].at[0][0] + half * 32;
          begin(upper, upper + 16, lower, lower + 16, opens);
          add_two(x(b), x(b + 1), piece.words[half], chunks, next);
          end(upper, upper + 16, lower, lower + 16);
        }
        close(b), close(b + 1);
      }
      if (b < count) {
        float* all = sums[b].at[0][0];
        // Alone it keeps its sums where they are until the slab ends.
        if (count > 1 || opens) begin(all, all + 16, all + 32, all + 48, opens);
        add_stripe(x(b), piece, chunks);
        if (count > 1 || closes) end(all, all + 16, all + 32, all + 48);
        close(b);
      }
      k += n, at += chunks;
    } while (k < last);
  }
}

}  // namespace

void matmul_bf16_by_tiles(const MatMul& a) {
  int64_t chunks = 0;
  for (int32_t slab = 0; slab < a.slab_count; ++slab) chunks += chunks_of(a.slabs[slab + 1] - a.slabs[slab]);
  const Tiles tiles(kTileRows);
  multiply_packed<kTileBlocks, true>(
      a, kTileRows, chunks * (kTileBytes / 4 / kTileRows),
      [&](const Block& block, float* to) { pack(a, block, to); }, multiply_tiles);
}

}  // namespace ark::simd
