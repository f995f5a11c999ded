// Weights in fewer bits that come back bit for bit: found for whatever common scheme made them, left alone otherwise.
#include "engine/weights/stored_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "base/ir/quantized.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

using Random = std::mt19937;

float half(float x) { return rounded_to_f16(x); }
float normal(Random& random) { return std::normal_distribution<float>(0, 0.05f)(random); }

// The numbers of a block after a trip through a quantised format.
using Scheme = std::function<void(Random&, std::span<float>)>;

// GGUF's blocks without and with a minimum, of codes up to `most`; `centre`: the code of zero, or -1.
void gguf(Random& random, std::span<float> block, int most, int centre) {
  float low = block[0], high = block[0], extreme = block[0];
  for (const float v : block) {
    low = std::min(low, v), high = std::max(high, v);
    if (std::fabs(v) > std::fabs(extreme)) extreme = v;
  }
  (void)random;
  const float exact =
      centre < 0 ? (high - low) / static_cast<float>(most) : extreme / static_cast<float>(-centre);
  const float d = half(exact), m = half(low);
  for (float& v : block) {
    const float steps = exact == 0 ? 0 : std::nearbyint((centre < 0 ? v - low : v) / exact);
    if (centre < 0)
      v = std::clamp(steps, 0.0f, static_cast<float>(most)) * d + m;
    else
      v = std::clamp(steps, static_cast<float>(-centre), static_cast<float>(most - centre)) * d;
  }
}

// Symmetric in f32, as DequantizeLinear and MatMulNBits.
void symmetric(std::span<float> block, int most, float by) {
  float extreme = 0;
  for (const float v : block) extreme = std::max(extreme, std::fabs(v));
  const float scale = extreme / by;
  for (float& v : block) v = std::clamp(std::nearbyint(v / scale), static_cast<float>(-most), by) * scale;
}

// A zero that is a code.
void with_zero(std::span<float> block, int most) {
  float low = 0, high = 0;
  for (const float v : block) low = std::min(low, v), high = std::max(high, v);
  const float scale = (high - low) / static_cast<float>(most);
  const float zero = std::nearbyint(-low / scale);
  for (float& v : block)
    v = (std::clamp(std::nearbyint(v / scale) + zero, 0.0f, static_cast<float>(most)) - zero) * scale;
}

// f32 step and minimum.
void affine(std::span<float> block, int most) {
  const auto [low, high] = std::minmax_element(block.begin(), block.end());
  const float m = *low, d = (*high - m) / static_cast<float>(most);
  for (float& v : block) v = std::fma(std::nearbyint((v - m) / d), d, m);
}

// Q4_K: six-bit multiples of two f16 numbers; not every block has a code 0 or 15.
void k_quant(Random& random, std::span<float> block) {
  const float d = half(0.0005f), least = half(0.0007f);
  const float scale = d * static_cast<float>(1 + random() % 63),
              offset = -(least * static_cast<float>(random() % 64));
  for (float& v : block) v = std::fma(static_cast<float>(random() % 16), scale, offset);
}

struct SchemeCase {
  const char* name;
  int64_t block;
  double most_bits;  // a number, terms included
  Scheme scheme;
};

const std::vector<SchemeCase>& cases() {
  static const std::vector<SchemeCase> all = {
      {"Q4_0", 32, 4.5, [](Random& r, auto b) { gguf(r, b, 15, 8); }},
      {"Q4_1", 32, 5, [](Random& r, auto b) { gguf(r, b, 15, -1); }},
      {"Q5_0", 32, 8.5, [](Random& r, auto b) { gguf(r, b, 31, 16); }},
      {"Q5_1", 32, 9, [](Random& r, auto b) { gguf(r, b, 31, -1); }},
      {"Q8_0", 32, 8.5, [](Random& r, auto b) { gguf(r, b, 255, 128); }},
      {"symmetric 8", 32, 9.25, [](Random&, auto b) { symmetric(b, 127, 127); }},
      {"Q4_K", 32, 6, [](Random& r, auto b) { k_quant(r, b); }},
      {"symmetric 4, blocks of 64", 64, 4.7, [](Random&, auto b) { symmetric(b, 7, 7); }},
      {"zero point 4, blocks of 128", 128, 4.4, [](Random&, auto b) { with_zero(b, 15); }},
      {"zero point 8, blocks of 16", 16, 10.5, [](Random&, auto b) { with_zero(b, 255); }},
      {"affine 4", 32, 6, [](Random&, auto b) { affine(b, 15); }},
      {"affine 8, blocks of 64", 64, 9, [](Random&, auto b) { affine(b, 255); }},
      {"int8 per column", 1 << 20, 8.4, [](Random&, auto b) { symmetric(b, 127, 127); }},
      {"bf16", 1, 16, [](Random&, auto b) { b[0] = rounded_to_bf16(b[0]); }},
      {"f16", 1, 16, [](Random&, auto b) { b[0] = half(b[0]); }},
      {"any f32", 1, 32, [](Random&, auto) {}},
  };
  return all;
}

struct Matrix {
  int64_t n, k;
  std::vector<float> values;  // [n][k]
};

Matrix make(const SchemeCase& c, int64_t n, int64_t k, Random& random) {
  Matrix m{n, k, std::vector<float>(static_cast<std::size_t>(n * k))};
  for (float& v : m.values) v = normal(random);
  for (int64_t row = 0; row < n; ++row)
    for (int64_t at = 0; at < k; at += c.block)
      c.scheme(random, std::span(m.values).subspan(static_cast<std::size_t>(row * k + at),
                                                   static_cast<std::size_t>(std::min(c.block, k - at))));
  return m;
}

// As the file has it: [N, K], or [K, N] if `turned`.
ConstantPtr constant_of(const Matrix& m, bool turned) {
  Tensor t = Tensor::empty(DType::kF32, turned ? Dims{m.k, m.n} : Dims{m.n, m.k});
  for (int64_t n = 0; n < m.n; ++n)
    for (int64_t k = 0; k < m.k; ++k)
      t.as<float>()[turned ? k * m.n + n : n * m.k + k] = m.values[static_cast<std::size_t>(n * m.k + k)];
  return make_constant(std::move(t), "w");
}

double bits_of_stored(const StoredWeights::Stored& s) {
  if (!s.constant->quantized) return bits_of(s.type);
  const Quantized& q = *s.constant->quantized;
  double bits = 0;
  for (const ConstantPtr& part : {q.codes, q.scales, q.zeros, q.offsets})
    if (part) bits += static_cast<double>(bytes_of(part->dtype, part->size())) * 8;
  return bits / static_cast<double>(q.rows * q.columns);
}

// The numbers as executors see them: f32, or through the stored type and back.
std::vector<float> numbers_of(const StoredWeights::Stored& s) {
  const Tensor t = materialise(*s.constant);
  std::vector<float> numbers(static_cast<std::size_t>(t.size()));
  load_f32(t.dtype, t.data.get(), 0, 1, t.size(), numbers.data());
  if (s.constant->quantized || s.type == t.dtype) return numbers;
  Tensor narrow = Tensor::empty(s.type, t.dims);
  store_f32(s.type, narrow.data.get(), 0, t.size(), numbers.data());
  load_f32(s.type, narrow.data.get(), 0, 1, t.size(), numbers.data());
  return numbers;
}

// Of products -0 may come back as +0.
bool same(std::vector<float> a, std::vector<float> b, bool is_table = false) {
  for (std::vector<float>* values : {&a, &b})
    for (float& v : *values) v = is_table ? v : v + 0.0f;
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

StoredWeights::Stored exactly(const ConstantPtr& c, int k_axis, int threads = 1, bool is_table = false) {
  return StoredWeights({{c, k_axis, is_table}}, {WeightPolicy::kExact, threads}).of(c);
}

TEST(StoredWeights, FindWhateverMadeThemAndChangeNoBit) {
  Random random(7);
  for (const SchemeCase& c : cases()) {
    for (const bool turned : {false, true}) {
      const Matrix m = make(c, 83, 256, random);
      const ConstantPtr w = constant_of(m, turned);
      const StoredWeights::Stored stored = exactly(w, turned ? 0 : 1, 2);
      EXPECT_LE(bits_of_stored(stored), c.most_bits + 0.01) << c.name << (turned ? ", turned" : "");
      EXPECT_TRUE(same(numbers_of(stored), numbers_of({w, DType::kF32}))) << c.name;
    }
  }
}

TEST(StoredWeights, OneOtherElementIsKept) {
  Random random(8);
  for (const SchemeCase& c : cases()) {
    for (int round = 0; round < (is_sanitized() ? 5 : 20); ++round) {
      Matrix m = make(c, 40, 160, random);
      float& odd = m.values[random() % m.values.size()];
      switch (round % 5) {
        case 0:
          odd = std::nextafterf(odd, 1);
          break;
        case 1:
          odd = NAN;
          break;
        case 2:
          odd = -0.0f;
          break;
        case 3:
          odd = 1e-41f;
          break;
        default:
          odd = INFINITY;
      }
      const ConstantPtr w = constant_of(m, round % 2 == 0);
      for (const bool is_table : {false, true}) {
        const StoredWeights::Stored stored = exactly(w, round % 2 == 0 ? 0 : 1, 1, is_table);
        EXPECT_TRUE(same(numbers_of(stored), numbers_of({w, DType::kF32}), is_table)) << c.name;
      }
    }
  }
}

// 1,000 sets of any scheme, size and orientation, whole blocks or not.
TEST(StoredWeights, AreEqualForRandomSets) {
  Random random(9);
  for (int round = 0; round < rounds(1000); ++round) {
    const SchemeCase& c = cases()[random() % cases().size()];
    const int64_t n = 8 + random() % 40, k = 64 + random() % 150;
    const bool turned = random() % 2;
    const ConstantPtr w = constant_of(make(c, n, k, random), turned);
    const StoredWeights::Stored stored = exactly(w, turned ? 0 : 1);
    ASSERT_TRUE(same(numbers_of(stored), numbers_of({w, DType::kF32}))) << c.name << " " << n << " x " << k;
  }
}

TEST(StoredWeights, ViewsOfOnePayloadShareItsCodes) {
  Random random(10);
  const ConstantPtr table = constant_of(make(cases()[1], 96, 64, random), false);
  const ConstantPtr head = transposed(table, {1, 0}), part = sliced(head, 1, 32, 64);
  const StoredWeights stored({{table, 1, true}, {head, 0}, {part, 0}}, {});
  for (const ConstantPtr& c : {table, head, part}) {
    const StoredWeights::Stored s = stored.of(c);
    ASSERT_TRUE(s.constant->quantized);
    EXPECT_EQ(s.constant->quantized, stored.of(table).constant->quantized);
    EXPECT_EQ(s.constant->dims, c->dims);
    EXPECT_TRUE(same(numbers_of(s), numbers_of({c, DType::kF32})));
  }
  // Along which axis are the blocks, where sums run along both?
  const StoredWeights both({{table, 1}, {table, 0}}, {});
  EXPECT_FALSE(both.of(table).constant->quantized);
}

TEST(StoredWeights, RoundedOnesAreNear) {
  Random random(11);
  const Matrix m = make(cases().back(), 64, 130, random);
  const ConstantPtr w = constant_of(m, true);
  const std::vector<float> exact = numbers_of({w, DType::kF32});
  const auto range_of_block = [&](int64_t n, int64_t k, bool around_zero) {
    float low = 0, high = 0;
    for (int64_t i = k / 32 * 32; i < std::min(k / 32 * 32 + 32, m.k); ++i) {
      const float v = m.values[static_cast<std::size_t>(n * m.k + i)];
      low = i == k / 32 * 32 && !around_zero ? v : std::min(low, v);
      high = i == k / 32 * 32 && !around_zero ? v : std::max(high, v);
    }
    return around_zero ? 2 * std::max(-low, high) : high - low;
  };
  for (const auto& [policy, steps] : {std::pair{WeightPolicy::kInt4, 15.0}, {WeightPolicy::kInt8, 254.0}}) {
    const StoredWeights::Stored s = StoredWeights({{w, 0}}, {policy, 2}).of(w);
    const std::vector<float> near = numbers_of(s);
    for (int64_t k = 0; k < m.k; ++k)
      for (int64_t n = 0; n < m.n; ++n) {
        const auto i = static_cast<std::size_t>(k * m.n + n);
        // Half a step; step and offset are rounded to 11 bits, over all steps.
        const double range = range_of_block(n, k, policy == WeightPolicy::kInt8);
        const double bound = range / steps * 0.5 + range * 0x1p-10 + 0.2 * 0x1p-11;
        ASSERT_TRUE(std::fabs(near[i] - exact[i]) <= bound) << k << " " << n << " " << steps;
      }
  }
  EXPECT_EQ(StoredWeights({{w, 0, true}}, {WeightPolicy::kInt4, 1}).of(w).constant->quantized->bits, 8);
  EXPECT_EQ(StoredWeights({{w, 0}}, {WeightPolicy::kBF16, 1}).of(w).type, DType::kBF16);
}

TEST(StoredWeights, WhatATypeCannotHoldStaysAsItIs) {
  Tensor t = Tensor::zeros(DType::kF32, {64, 64});
  t.as<float>()[5] = 1e6f;
  const ConstantPtr w = make_constant(std::move(t), "w");
  EXPECT_EQ(StoredWeights({{w, 0}}, {WeightPolicy::kF16, 1}).of(w).type, DType::kF32);
  EXPECT_FALSE(StoredWeights({{w, 0}}, {WeightPolicy::kInt4, 1}).of(w).constant->quantized);
}

}  // namespace
}  // namespace ark::test
