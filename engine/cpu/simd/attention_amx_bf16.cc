// Attention's products by tdpbf16ps: tiles of sixteen query rows against sixteen keys, of their weights against sixteen
// dimensions of values.
#include "engine/cpu/simd/attention_tiles.h"
#include "engine/cpu/simd/dot_amx.h"
#include "engine/cpu/simd/dot_avx512.h"
#include "engine/cpu/simd/pack_avx512.h"

namespace ark::simd {
namespace {

constexpr int64_t kTileFloats = kTileBytes / 4;

// Sixteen numbers of 16 bits each at `even` and `odd`, of which `mask` are there, as words of one of each.
__m512i join(const uint16_t* even, const uint16_t* odd, __mmask16 mask_even, __mmask16 mask_odd) {
  alignas(64) static constexpr auto kOrder = [] {
    std::array<uint16_t, 32> order{};
    for (uint16_t i = 0; i < 16; ++i) order[2 * i] = i, order[2 * i + 1] = i + 16;
    return order;
  }();
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask_even, even)),
                                          _mm256_maskz_loadu_epi16(mask_odd, odd), 1);
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder.data()), both);
}

// Keys as tiles [sixteen keys][chunk of dimensions], values [chunk of keys][sixteen dimensions], queries and weights
// [chunk] as rows.
class AttentionTiles {
 public:
  using V = __m512;
  static constexpr int kRows = kTileRows;

  explicit AttentionTiles(const SpanKeys& keys)
      : a_(keys.a),
        chunks_(keys.chunks()),
        key_chunks_((a_.key_dim + 31) / 32),
        value_tiles_((a_.value_dim + 15) / 16),
        stride_(chunks_.last * kChunkKeys + 16),  // rows begin in different sets of the first-level cache
        queries_(a_.room),
        weights_(queries_ + key_chunks_ * kTileFloats),
        scores_(weights_ + chunks_.last * kTileFloats),
        keys_(scores_ + kTileRows * stride_),
        values_(keys_ + 2 * chunks_.last * key_chunks_ * kTileFloats) {
    for (int64_t v = 2 * chunks_.first; v < 2 * chunks_.last; ++v) {
      if (v % 2 == 0) pack_values(keys, v / 2);
      pack_keys(keys, v);
    }
  }

  // Whether all values are: one that is not would be in the sums of rows that do not see it.
  bool are_finite() const { return are_finite_; }

  float* scores(int r) const { return scores_ + r * stride_; }
  void score(int64_t row, int n, Chunks chunks) {
    for (int r = 0; r < n; ++r) {
      const float* const q = a_.queries[row + r];
      for (int64_t chunk = 0; chunk < key_chunks_; ++chunk) {
        const int64_t d = chunk * 32;
        const __m512 low = load_first(q + d, a_.key_dim - d),
                     high = load_first(q + d + 16, a_.key_dim - d - 16);
        store(queries_ + chunk * kTileFloats + r * 16, _mm512_cvtne2ps_pbh(high, low));
      }
    }
    int64_t v = 2 * chunks.first;
    for (; v + 4 <= 2 * chunks.last; v += 4) score_keys<4>(v);
    if (v < 2 * chunks.last) score_keys<2>(v);
  }
  void weigh(int r, int64_t chunk, V low, V high) {
    store(weights_ + chunk * kTileFloats + r * 16, _mm512_cvtne2ps_pbh(high, low));
  }
  void add(int64_t row, int n, Chunks chunks) {
    int64_t tile = 0;
    for (; tile + 4 <= value_tiles_; tile += 4) add_values<4>(row, n, chunks, tile);
    for (; tile < value_tiles_; ++tile) add_values<1>(row, n, chunks, tile);
  }

 private:
  static void store(float* to, __m512bh v) { _mm512_storeu_si512(to, std::bit_cast<__m512i>(v)); }
  static __mmask16 first(int64_t n) {
    return static_cast<__mmask16>((1u << std::clamp<int64_t>(n, 0, 16)) - 1);
  }

  void pack_keys(const SpanKeys& keys, int64_t v) {
    float* to = keys_ + v * key_chunks_ * kTileFloats;
    // Spans begin with a page; what lies behind the last key in its page is its own affair.
    if (a_.page_size % 16 == 0 && keys.has(v * 16)) {
      const uint16_t* from = keys.key(v * 16);
      for (int64_t d = 0; d < key_chunks_ * 32; d += 2, from += 2 * a_.page_size, to += 16)
        _mm512_storeu_si512(to, join(from, from + a_.page_size, d < a_.key_dim ? 0xFFFF : 0,
                                     d + 1 < a_.key_dim ? 0xFFFF : 0));
      return;
    }
    std::memset(to, 0, static_cast<std::size_t>(key_chunks_) * kTileBytes);
    for (int64_t i = 0; i < 16; ++i) {
      if (!keys.has(v * 16 + i)) continue;
      const uint16_t* const from = keys.key(v * 16 + i);
      for (int64_t d = 0; d < a_.key_dim; ++d)
        std::memcpy(reinterpret_cast<uint16_t*>(to + d / 2 * 16 + i) + d % 2, from + d * a_.page_size, 2);
    }
  }
  void pack_values(const SpanKeys& keys, int64_t chunk) {
    const __m512i infinite = _mm512_set1_epi16(0x7F80);
    for (int64_t i = 0; i < kChunkKeys / 2; ++i) {
      const int64_t k = chunk * kChunkKeys + 2 * i;
      const bool has_even = keys.has(k), has_odd = keys.has(k + 1);
      const uint16_t* const even = keys.value(has_even ? k : keys.first);
      const uint16_t* const odd = keys.value(has_odd ? k + 1 : keys.first);
      for (int64_t tile = 0; tile < value_tiles_; ++tile) {
        const int64_t d = tile * 16;
        const __mmask16 mask = first(a_.value_dim - d);
        const __m512i words = join(even + d, odd + d, has_even ? mask : 0, has_odd ? mask : 0);
        if (_mm512_cmpge_epu16_mask(_mm512_and_si512(words, _mm512_set1_epi16(0x7FFF)), infinite))
          are_finite_ = false;
        _mm512_storeu_si512(values_ + (chunk * value_tiles_ + tile) * kTileFloats + i * 16, words);
      }
    }
  }

  template <int N>
  static void clear() {
    clear_tile<0>();
    if constexpr (N > 1) clear_tile<1>();
    if constexpr (N > 2) clear_tile<2>(), clear_tile<3>();
  }
  // Sums of one tile of x and N of the others, so many floats apart.
  template <int N>
  static void multiply(const float* x, const float* w, int64_t apart) {
    load_tile<4>(x, 64);
    load_tile<6>(w, 64);
    add_bf16_products<0, 4, 6>();
    if constexpr (N > 1) {
      load_tile<7>(w + apart, 64);
      add_bf16_products<1, 4, 7>();
    }
    if constexpr (N > 2) {
      load_tile<6>(w + 2 * apart, 64);
      add_bf16_products<2, 4, 6>();
      load_tile<7>(w + 3 * apart, 64);
      add_bf16_products<3, 4, 7>();
    }
  }
  template <int N>
  static void store_sums(float* to, int64_t stride) {
    store_tile<0>(to, stride);
    if constexpr (N > 1) store_tile<1>(to + 16, stride);
    if constexpr (N > 2) store_tile<2>(to + 32, stride), store_tile<3>(to + 48, stride);
  }

  template <int N>
  void score_keys(int64_t v) {
    clear<N>();
    const float* const keys = keys_ + v * key_chunks_ * kTileFloats;
    for (int64_t chunk = 0; chunk < key_chunks_; ++chunk)
      multiply<N>(queries_ + chunk * kTileFloats, keys + chunk * kTileFloats, key_chunks_ * kTileFloats);
    store_sums<N>(scores_ + v * 16, stride_ * 4);
  }
  template <int N>
  void add_values(int64_t row, int n, Chunks chunks, int64_t tile) {
    alignas(64) float sums[kTileRows][16 * N];
    clear<N>();
    for (int64_t chunk = chunks.first; chunk < chunks.last; ++chunk)
      multiply<N>(weights_ + chunk * kTileFloats, values_ + (chunk * value_tiles_ + tile) * kTileFloats,
                  kTileFloats);
    store_sums<N>(sums[0], sizeof sums[0]);
    for (int r = 0; r < n; ++r) {
      float* const to = a_.accumulators + (row + r) * a_.value_dim;
      for (int64_t d = tile * 16; d < std::min(a_.value_dim, (tile + N) * 16); d += 16)
        _mm512_mask_storeu_ps(to + d, first(a_.value_dim - d), _mm512_load_ps(sums[r] + (d - tile * 16)));
    }
  }

  const AttentionRows& a_;
  Chunks chunks_;
  int64_t key_chunks_, value_tiles_, stride_;
  float *queries_, *weights_, *scores_, *keys_, *values_;
  bool are_finite_ = true;
};

}  // namespace

void attention_by_tiles(const AttentionRows& a) {
  const SpanKeys keys(a);
  AttentionTiles products(keys);
  if (!products.are_finite()) return kAvx512Table.attention_bf16_tiles(a);
  const Tiles tiles(kTileRows, static_cast<int>(std::min<int64_t>(kTileRows, a.rows)));
  attend_span<Avx512>(a, keys, products);
}

}  // namespace ark::simd
