// What sampling does with whole rows of logits; the exact rest, of few tokens, is engine/cpu/sampler.cc.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/cpu/simd/math.h"
#include "engine/cpu/simd/rows.h"
#include "engine/cpu/simd/table.h"

namespace ark::simd {
namespace {

template <class T>
double exps(const float* x, int64_t n, float largest, float scale, float* out) {
  constexpr int64_t kPiece = 1024;  // sums of more would be too coarse in f32
  double sum = 0;
  for (int64_t first = 0; first < n; first += kPiece) {
    typename T::V piece = T::zero();
    for_vectors(std::min(kPiece, n - first), [&](int64_t i, int lanes) {
      const typename T::V d =
          T::mul(T::sub(load_lanes<T>(x + first + i, lanes), T::set(largest)), T::set(scale));
      const typename T::V e = exp<T>(d);
      if (out) store_lanes<T>(out + first + i, e, lanes);
      piece = T::add(piece, T::select(T::lanes(0, lanes), e, T::zero()));
    });
    sum += static_cast<double>(T::sum(piece));
  }
  return sum;
}

// Calls f(i) for i < n with is(i), ascending, where few are; `is` has no branches.
template <typename Is, typename F>
void for_few(int64_t n, Is is, F f) {
  int any = 0;
  for (int64_t i = 0; i < n; ++i) any |= static_cast<int>(is(i));
  if (any == 0) return;
  for (int64_t i = 0; i < n; ++i)
    if (is(i)) f(i);
}

inline constexpr int64_t kFew = 64;  // elements that are looked at together

inline int64_t at_least(const float* x, int64_t n, float least, int32_t* ids) {
  int64_t found = 0;
  for (int64_t first = 0; first < n; first += kFew)
    for_few(
        std::min(kFew, n - first), [&](int64_t i) { return x[first + i] >= least; },
        [&](int64_t i) { ids[found++] = static_cast<int32_t>(first + i); });
  return found;
}

// philox4x32() (engine/cpu/philox.h) of kBlocks counters from `first` on: words [kBlocks][4]. Its loops over blocks
// must not be unrolled before the compiler makes vectors of them.
inline constexpr int kBlocks = 64;
inline void noise_words(uint32_t first, uint64_t position, uint64_t seed, uint32_t* words) {
  alignas(64) uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
  for (uint32_t i = 0; i < kBlocks; ++i) {
    c0[i] = first + i;
    c1[i] = static_cast<uint32_t>(position);
    c2[i] = static_cast<uint32_t>(position >> 32);
    c3[i] = 0;
  }
  auto k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 1
    for (int i = 0; i < kBlocks; ++i) {
      const uint64_t a = uint64_t{0xD2511F53} * c0[i], b = uint64_t{0xCD9E8D57} * c2[i];
      c0[i] = static_cast<uint32_t>(b >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(b);
      c2[i] = static_cast<uint32_t>(a >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(a);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
#pragma GCC unroll 1
  for (int i = 0; i < kBlocks; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

// With v = ~bits and u = (bits + 1/2) / 2^32: noise = -log(-log(u)) <= -log(1 - u) = -log((v + 1/2) / 2^32). So only
// those tokens can come to `best` whose v / 2 <= 2^31 exp(d - best); the margin is far more than what f32 rounds.
template <class T>
int64_t noisy(const NoisyTokens& a) {
  constexpr float kMargin = 1e-4f;
  int64_t found = 0;
  alignas(64) uint32_t block[4 * kBlocks];
  for (int64_t first = a.first; first < a.last; first += kFew) {
    const int64_t at = (first - a.first) % (4 * kBlocks);
    if (at == 0) noise_words(static_cast<uint32_t>(first / 4), a.position, a.seed, block);
    const uint32_t* words = block + at;
    float bounds[kFew];
    const int64_t count = std::min(kFew, a.last - first);
    for_vectors(count, [&](int64_t i, int lanes) {
      const typename T::V d =
          T::mul(T::sub(load_lanes<T>(a.logits + first + i, lanes), T::set(a.largest)), T::set(a.scale));
      T::store(bounds + i, T::mul(exp<T>(T::sub(d, T::set(a.best - kMargin))), T::set(0x1p31f)));
    });
    for_few(
        count,
        [&](int64_t i) { return static_cast<float>(static_cast<int32_t>(~words[i] >> 1)) <= bounds[i]; },
        [&](int64_t i) {
          a.tokens[found] = static_cast<int32_t>(first + i);
          a.words[found++] = words[i];
        });
  }
  return found;
}

}  // namespace
}  // namespace ark::simd
