// Weights as panels (engine/program/weight_codec.h), written down from their description, and sums as recipes add them.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "engine/program/program.h"
#include "engine/run/isa.h"

namespace ark::test {

// All of this machine.
inline std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (int i = 0; i <= static_cast<int>(best_isa()); ++i) all.push_back(static_cast<Isa>(i));
  return all;
}

inline std::vector<float> random_floats(std::size_t n, uint32_t seed, float size = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> spread(-size, size);
  std::vector<float> v(n);
  for (float& x : v) x = spread(random);
  return v;
}

struct Problem {
  int64_t m, k, n;
  int32_t panel;
  std::vector<int32_t> slabs;
  DType stored;
  int32_t block = 0;
  BlockTerms terms = BlockTerms::kZeros;
  bool shares_zero = false;  // all columns of a block have one
};

struct Packed {
  std::vector<std::byte> bytes;
  std::vector<float> values;           // [k][n], as stored
  std::vector<int> codes;              // [k][n], less their zero
  std::vector<float> scales, offsets;  // [k / block][n]; 0 with zeros
};

// Stores `term` as the terms of `kind` are stored, and gives it as it is then.
inline float put_term(std::byte* terms, int64_t column, BlockTerms kind, float term) {
  if (kind == BlockTerms::kZeros || kind == BlockTerms::kOffsets) {
    std::memcpy(terms + 4 * column, &term, 4);
    return term;
  }
  const uint16_t half = f32_to_f16(term);
  std::memcpy(terms + 2 * column, &half, 2);
  return f16_to_f32(half);
}

// Codes, scales and zeros or offsets at random, as engine/program/weight_codec.h describes them.
inline Packed pack_codes(const Problem& p, uint32_t seed) {
  std::mt19937 random(seed);
  const int64_t panels = (p.n + p.panel - 1) / p.panel, blocks = (p.k + p.block - 1) / p.block;
  const int bits = bits_of(p.stored);
  const bool is_real = !is_integer(p.stored);  // of finite codes, without zeros
  const bool in_middle = p.terms == BlockTerms::kScales16, zeros = p.terms == BlockTerms::kZeros || in_middle;
  const int64_t scale_size = p.terms == BlockTerms::kOffsets16 || in_middle ? 2 : 4;
  const int64_t head = in_middle ? 2 : zeros ? 5 : 2 * scale_size;
  const int64_t block_bytes = head * p.panel + p.block * p.panel * bits / 8;
  Packed out;
  out.bytes.resize(static_cast<std::size_t>(panels * blocks * block_bytes));
  out.values.resize(static_cast<std::size_t>(p.k * p.n));
  out.codes.resize(out.values.size());
  out.scales.resize(static_cast<std::size_t>(blocks * p.n));
  out.offsets.resize(out.scales.size());
  for (int64_t n = 0; n < p.n; ++n) {
    for (int64_t b = 0; b < blocks; ++b) {
      std::byte* block = out.bytes.data() + (n / p.panel * blocks + b) * block_bytes;
      const int64_t column = n % p.panel;
      const float sign = in_middle && n % 3 == 0 ? -1 : 1;
      const float scale =
          put_term(block, column, p.terms, sign * (0.01f + static_cast<float>(random() % 1000) / 7000.f));
      int zero = is_real || !zeros ? 0 : static_cast<int>(random() % (1u << bits));
      if (p.shares_zero) zero = static_cast<int>(7 * b % (1 << bits));
      if (in_middle) zero = 1 << (bits - 1);
      std::byte* const others = block + scale_size * p.panel;
      const float offset =
          zeros ? 0 : put_term(others, column, p.terms, -static_cast<float>(random() % 1000) / 3000.f);
      if (zeros && !in_middle) others[column] = static_cast<std::byte>(zero);
      out.scales[b * p.n + n] = scale, out.offsets[b * p.n + n] = offset;
      for (int64_t i = 0; i < p.block && b * p.block + i < p.k; ++i) {
        const auto code = static_cast<int>(random() % (p.stored == DType::kF8E4M3 ? 127 : 1u << bits));
        std::byte* pair = block + head * p.panel + (i / 2 * p.panel + column) * (bits / 4);
        if (bits == 4)
          *pair |= static_cast<std::byte>(code << (i % 2 * 4));
        else
          pair[i % 2] = static_cast<std::byte>(code);
        out.codes[(b * p.block + i) * p.n + n] = code - zero;
        const auto byte = static_cast<std::byte>(code);
        float number;
        load_f32(is_real ? p.stored : DType::kU8, &byte, 0, 1, 1, &number);
        out.values[(b * p.block + i) * p.n + n] =
            zeros ? (number - static_cast<float>(zero)) * scale : std::fma(number, scale, offset);
      }
    }
  }
  return out;
}

inline Packed pack(const Problem& p, const std::vector<float>& w) {
  if (p.block != 0) return pack_codes(p, static_cast<uint32_t>(w.size()));
  Packed out;
  const int64_t panels = (p.n + p.panel - 1) / p.panel;
  const auto size = static_cast<std::size_t>(bits_of(p.stored) / 8);
  out.bytes.resize(static_cast<std::size_t>(panels * p.k * p.panel) * size);
  out.values.resize(w.size());
  for (int64_t k = 0; k < p.k; ++k) {
    for (int64_t n = 0; n < p.n; ++n) {
      const auto from = static_cast<std::size_t>(k * p.n + n);
      const auto at = static_cast<std::size_t>((n / p.panel * p.k + k) * p.panel + n % p.panel);
      if (p.stored == DType::kF32) {
        reinterpret_cast<float*>(out.bytes.data())[at] = out.values[from] = w[from];
      } else if (p.stored == DType::kF8E4M3) {
        out.bytes[at] = static_cast<std::byte>(f32_to_f8e4m3(w[from]));
        out.values[from] = f8e4m3_to_f32(std::to_integer<uint8_t>(out.bytes[at]));
      } else {
        const bool half = p.stored == DType::kF16;
        const uint16_t bits = half ? f32_to_f16(w[from]) : f32_to_bf16(w[from]);
        reinterpret_cast<uint16_t*>(out.bytes.data())[at] = bits;
        out.values[from] = half ? f16_to_f32(bits) : bf16_to_f32(bits);
      }
    }
  }
  return out;
}

// Pairwise tree over the slabs [a, b).
inline float tree(const std::vector<float>& sums, std::size_t a, std::size_t b) {
  if (b - a == 1) return sums[a];
  const std::size_t m = (a + b) / 2;
  return tree(sums, a, m) + tree(sums, m, b);
}

// [m][n]: the tree of what sum(row, column, begin, end) gives for each slab of k.
template <class Sum>
std::vector<float> by_slabs(const Problem& p, Sum sum) {
  std::vector<float> out(static_cast<std::size_t>(p.m * p.n));
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      std::vector<float> sums;
      for (std::size_t s = 0; s + 1 < p.slabs.size(); ++s)
        sums.push_back(sum(i, j, p.slabs[s], p.slabs[s + 1]));
      out[i * p.n + j] = tree(sums, 0, sums.size());
    }
  }
  return out;
}

inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace ark::test
