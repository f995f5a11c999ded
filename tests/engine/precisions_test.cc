// Products in bf16 and int8 against their definitions in plain scalars, bit for bit, on every instruction set.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/ir/keys.h"
#include "engine/compile.h"
#include "engine/cpu/simd/table.h"
#include "engine/program/opcodes.h"
#include "engine/program/program.h"
#include "engine/program/text.h"
#include "engine/validate/validate.h"
#include "tests/engine/panels.h"
#include "tests/engine/token_graphs.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

uint32_t bits_of_float(float v) { return std::bit_cast<uint32_t>(v); }

// To nearest even among numbers of eight bits, denormals to zero, one NaN.
float as_bf16(float v) {
  if (std::isnan(v)) return v;
  if (std::fabs(v) < 0x1p-126f) return std::copysign(0.f, v);
  if (std::isinf(v)) return v;
  int exponent;
  const float fraction = std::frexp(v, &exponent);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8));
}

float flushed(float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.f, v) : v; }

// fma that takes denormals for zeros and gives none; whether a result is one is decided after rounding to 24 bits.
float flushing_fma(float a, float b, float c) {
  a = flushed(a), b = flushed(b), c = flushed(c);
  const float sum = std::fma(a, b, c);
  const double wide = std::fma(static_cast<double>(a), b, c);
  return std::fabs(wide) < 0x1p-126 * (1 - 0x1p-25) ? std::copysign(0.f, sum) : sum;
}

std::vector<float> plain_bf16(const Problem& p, const std::vector<float>& x, const std::vector<float>& w) {
  return by_slabs(p, [&](int64_t i, int64_t j, int32_t begin, int32_t end) {
    float sum = 0;
    for (int32_t k = begin; k < end; k += 2) {
      const bool whole = k + 1 < end;  // else padded with zeros
      sum = whole ? flushing_fma(as_bf16(x[i * p.k + k + 1]), w[(k + 1) * p.n + j], sum) : sum + 0.f;
      sum = flushing_fma(as_bf16(x[i * p.k + k]), w[k * p.n + j], sum);
    }
    return sum;
  });
}

// Intel SDM, volume 2, TDPBF16PS: even and odd ones of 32 apart, all three sums flushed.
std::vector<float> plain_bf16_tiles(const Problem& p, const std::vector<float>& x,
                                    const std::vector<float>& w) {
  return by_slabs(p, [&](int64_t i, int64_t j, int32_t begin, int32_t end) {
    float sum = 0;
    for (int32_t k = begin; k < end; k += 32) {
      float half[2] = {};
      for (int32_t e = 0; e < 32; ++e) {
        const bool is_there = k + e < end;  // else padded with zeros
        half[e % 2] = flushing_fma(is_there ? as_bf16(x[i * p.k + k + e]) : 0,
                                   is_there ? w[(k + e) * p.n + j] : 0, half[e % 2]);
      }
      sum = flushed(sum + flushed(half[0] + half[1]));
    }
    return sum;
  });
}

std::vector<float> plain_int8(const Problem& p, const std::vector<float>& x, const Packed& w) {
  return by_slabs(p, [&](int64_t i, int64_t j, int32_t begin, int32_t last) {
    float sum = 0;
    for (int32_t k = begin; k < last; k += p.block) {
      const int32_t end = std::min(k + p.block, last);
      float most = 0;
      for (int32_t e = k; e < end; ++e) {
        const float size = std::fabs(x[i * p.k + e]);
        most = std::isnan(most) || size <= most ? most : size;  // NaN stays
      }
      int64_t whole = 0, all = 0;
      const bool usable = std::isfinite(most) && most >= 0x1p-100f;
      for (int32_t e = k; usable && e < end; ++e) {
        const int64_t q = std::lrint(x[i * p.k + e] * (127 / most));
        whole += q * w.codes[e * p.n + j], all += q;
      }
      const float scale = usable ? most / 127 : most < 0x1p-100f ? 0 : most;
      const auto block = static_cast<std::size_t>(k / p.block * p.n + j);
      sum = std::fma(static_cast<float>(whole), scale * w.scales[block], sum);
      if (p.terms == BlockTerms::kOffsets || p.terms == BlockTerms::kOffsets16)
        sum = std::fma(static_cast<float>(all) * scale, w.offsets[block], sum);
    }
    return sum;
  });
}

// The problem in two calls, as rows are independent of each other's company; the epilogue adds a bias.
std::vector<float> run(const Problem& p, Precision precision, Isa isa, const std::vector<float>& x,
                       const std::byte* w) {
  std::vector<float> out(static_cast<std::size_t>(p.m * p.n), 7),
      packed(static_cast<std::size_t>(simd::packed_room(p.m, p.k)));
  simd::MatMul a;
  a.x = x.data();
  a.m = p.m, a.k = p.k, a.n = p.n;
  a.w = w, a.stored = p.stored, a.panel = p.panel, a.block = p.block, a.terms = p.terms;
  a.slabs = p.slabs.data(), a.slab_count = static_cast<int32_t>(p.slabs.size()) - 1;
  a.out = out.data(), a.packed = packed.data();
  a.last_panel = (p.n + p.panel - 1) / p.panel;
  for (const int64_t border : {p.m / 3, p.m}) {
    a.last_row = border;
    if (a.first_row < border) simd::table_of(isa).product(precision)(a);
    a.first_row = border;
  }
  return out;
}

void expect_equal(const Problem& p, Precision precision, std::vector<float> expected,
                  const std::vector<float>& x, const std::byte* w) {
  for (float& v : expected)
    if (std::isnan(v)) v = std::bit_cast<float>(0x7FC00000);  // the one that comes out
  for (const Isa isa : isas()) {
    const std::vector<float> out = run(p, precision, isa, x, w);
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_EQ(bits_of_float(out[i]), bits_of_float(expected[i]))
          << out[i] << " for " << expected[i] << " at " << i << ", m " << p.m << " k " << p.k << " n " << p.n
          << " block " << p.block << " " << name_of(p.stored) << " " << name_of(precision) << " "
          << simd::table_of(isa).name;
  }
}

int64_t below(std::mt19937& random, int64_t n) { return static_cast<int64_t>(random()) % n; }

// Of every kind: denormals, the least normals, the greatest numbers, infinities, NaN, ordinary ones.
float hostile(std::mt19937& random, bool any) {
  const auto bits = [&](uint32_t n) { return static_cast<uint32_t>(below(random, n)); };
  const uint32_t sign = bits(2) << 31;
  switch (below(random, any ? 9 : 6)) {
    case 0:
      return std::bit_cast<float>(sign | bits(0x00800000));
    case 1:
      return std::bit_cast<float>(sign | (0x00800000 + bits(0x02000000)));
    case 2:
      return std::bit_cast<float>(sign | (0x1F000000 + bits(0x02000000)));  // about 2^-65
    case 6:
      return std::bit_cast<float>(sign | 0x7F7FFFFF);
    case 7:
      return std::bit_cast<float>(sign | 0x7F800000);
    case 8:
      return std::bit_cast<float>(sign | 0x7FC00000 | bits(1000));
    default:
      return std::ldexp(static_cast<float>(below(random, 2001)) - 1000, -10);
  }
}

std::vector<int32_t> random_slabs(std::mt19937& random, int64_t k, int64_t unit) {
  const int count = 1 << below(random, 4);
  std::vector<int32_t> slabs = {0};
  for (int i = 1; i < count; ++i) slabs.push_back(static_cast<int32_t>(below(random, k / unit + 1) * unit));
  std::sort(slabs.begin(), slabs.end());
  slabs.push_back(static_cast<int32_t>(k));
  return slabs;
}

TEST(Precisions, BF16EqualsItsDefinition) {
  for (int i = 0; i < rounds(60, 60); ++i) {
    std::mt19937 random(i);
    Problem p{1 + below(random, i % 4 == 0 ? 70 : 14),
              1 + below(random, 300),
              1 + below(random, 150),
              64,
              {},
              DType::kBF16};
    if (i % 20 == 0) p.m = 120, p.k = 1700;  // many blocks of rows, several pieces of the weight
    p.slabs = random_slabs(random, p.k, 1);
    if (i % 3 == 0) p.panel = 128;
    auto x = random_floats(static_cast<std::size_t>(p.m * p.k), static_cast<uint32_t>(i));
    const Packed w =
        pack(p, random_floats(static_cast<std::size_t>(p.k * p.n), static_cast<uint32_t>(i) + 999));
    expect_equal(p, Precision::kBF16, plain_bf16(p, x, w.values), x, w.bytes.data());
    expect_equal(p, Precision::kBF16Tiles, plain_bf16_tiles(p, x, w.values), x, w.bytes.data());
  }
}

TEST(Precisions, BF16FlushesDenormalsAndKeepsInfinitiesAndNaN) {
  for (int i = 0; i < 200; ++i) {
    std::mt19937 random(i);
    Problem p{1 + below(random, 13), 1 + below(random, 9), 64, 64, {}, DType::kBF16};
    p.slabs = random_slabs(random, p.k, 1);
    std::vector<float> x(static_cast<std::size_t>(p.m * p.k)), numbers(static_cast<std::size_t>(p.k * p.n));
    const bool any = i % 2 == 0;
    for (float& v : x) v = hostile(random, any);
    for (float& v : numbers) v = hostile(random, any);
    const Packed w = pack(p, numbers);
    expect_equal(p, Precision::kBF16, plain_bf16(p, x, w.values), x, w.bytes.data());
    expect_equal(p, Precision::kBF16Tiles, plain_bf16_tiles(p, x, w.values), x, w.bytes.data());
  }
}

TEST(Precisions, Int8EqualsItsDefinition) {
  const int32_t blocks[] = {8, 10, 12, 16, 18, 30, 32, 64, 128};
  for (int i = 0; i < rounds(90, 90); ++i) {
    std::mt19937 random(i);
    Problem p{1 + below(random, i % 4 == 0 ? 70 : 14), 1 + below(random, 300), 1 + below(random, 150), 64, {},
              i % 2 ? DType::kU4 : DType::kU8,         blocks[i % 9]};
    if (p.stored == DType::kU8) p.block = std::min(p.block, 64);
    if (i % 11 == 0) p.m = 60, p.k = 1700, p.n = 128, p.block = 32, p.shares_zero = true;
    p.slabs = random_slabs(random, p.k, p.block);
    if (i % 3 == 0) p.panel = 128;
    p.terms = static_cast<BlockTerms>(p.shares_zero ? i / 11 % 2 * 3 : i / 2 % 4);
    auto x = random_floats(static_cast<std::size_t>(p.m * p.k), static_cast<uint32_t>(i));
    const Packed w = pack_codes(p, static_cast<uint32_t>(i));
    if (i % 5 == 0)
      for (float& v : x) v = hostile(random, i % 10 == 0 && below(random, 20) == 0);
    expect_equal(p, Precision::kInt8, plain_int8(p, x, w), x, w.bytes.data());
  }
}

// All of one sign and as large as they come: no sum passes what f32 holds, nor what the instruction adds to.
TEST(Precisions, Int8SumsTheLargestIntegersExactly) {
  for (const DType stored : {DType::kU4, DType::kU8}) {
    Problem p{3, 128, 64, 64, {0, 128}, stored, stored == DType::kU4 ? 128 : 64};
    const std::vector<float> x(static_cast<std::size_t>(p.m * p.k), 1);
    Packed w = pack_codes(p, 1);
    const int64_t unit = 5 * p.panel + p.block * p.panel * (stored == DType::kU4 ? 4 : 8) / 8;
    for (int64_t b = 0; b < p.k / p.block; ++b) {
      std::fill_n(w.bytes.begin() + b * unit + 4 * p.panel, p.panel, std::byte{0});
      std::fill(w.bytes.begin() + b * unit + 5 * p.panel, w.bytes.begin() + (b + 1) * unit, std::byte{0xFF});
    }
    w.codes.assign(w.codes.size(), stored == DType::kU4 ? 15 : 255);
    expect_equal(p, Precision::kInt8, plain_int8(p, x, w), x, w.bytes.data());
  }
}

// A row's infinity or NaN makes that row's results NaN, and no other row's.
TEST(Precisions, Int8ShowsWhatItCannotQuantize) {
  Problem p{3, 64, 64, 64, {0, 64}, DType::kU4, 32};
  auto x = random_floats(static_cast<std::size_t>(p.m * p.k), 5);
  x[64 + 3] = -INFINITY;
  const Packed w = pack_codes(p, 9);
  for (const Isa isa : isas()) {
    const std::vector<float> out = run(p, Precision::kInt8, isa, x, w.bytes.data());
    for (int64_t i = 0; i < p.m * p.n; ++i) EXPECT_EQ(std::isnan(out[i]), i / p.n == 1) << i;
  }
}

// ---- which products

DecoderModel decoder(int32_t bits, DType type, int64_t level) {
  TokenGraphOptions o;
  o.bits = bits;
  o.weight = type;
  DecoderModel model = llama_tokens(o);
  for (Node& node : model.tokens.nodes)
    if (node.op == Op::kMatMul && level != 0) node.attributes.set(key::kAccuracyLevel, level);
  return model;
}

Compiled compiled(const DecoderModel& model, Activations activations, int32_t ranks = 1) {
  CompileOptions options{
      .ranks = ranks, .max_tokens = 8, .max_rows = 4, .max_items = 8, .page_size = 4, .pages = 8};
  options.activations = activations;
  return compile_decoder(model, options);
}

// Of all products, which must be one.
Precision precision_of(const Compiled& c) {
  std::set<Precision> found;
  for (const Variant& v : c.programs[0].variants)
    if (is_product(v.code)) found.insert(v.precision);
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? Precision::kF32 : *found.begin();
}

TEST(Precisions, FollowTheFileAndTheOption) {
  struct Case {
    int32_t bits;
    DType type;
    int64_t level;
    Precision by_file, by_bf16, by_int8;
  };
  using enum Precision;
  for (const Case& c : {Case{4, DType::kF32, 0, kF32, kF32, kInt8},
                        {4, DType::kF32, 4, kInt8, kF32, kInt8},
                        {8, DType::kF32, 4, kInt8, kF32, kInt8},
                        {4, DType::kF32, 3, kF32, kF32, kInt8},
                        {0, DType::kBF16, 0, kF32, kBF16, kF32},
                        {0, DType::kBF16, 3, kBF16, kBF16, kF32},
                        {0, DType::kBF16, 4, kF32, kBF16, kF32},
                        {0, DType::kF16, 4, kF32, kF32, kF32},
                        {0, DType::kF32, 3, kF32, kF32, kF32}}) {
    const DecoderModel model = decoder(c.bits, c.type, c.level);
    SCOPED_TRACE(std::string(name_of(c.type)) + " bits " + std::to_string(c.bits) + " level " +
                 std::to_string(c.level));
    EXPECT_EQ(precision_of(compiled(model, Activations::kAuto)), c.by_file);
    EXPECT_EQ(precision_of(compiled(model, Activations::kF32)), kF32);
    EXPECT_EQ(precision_of(compiled(model, Activations::kBF16)), c.by_bf16);
    EXPECT_EQ(precision_of(compiled(model, Activations::kInt8)), c.by_int8);
  }
}

// As a GPU keeps them where nothing is asked for.
TEST(Precisions, KeysAndValuesHaveSixteenBitsWhereWeightsOrTheirScalesHave) {
  struct Case {
    int32_t bits;  // of the file's codes
    DType type;    // of its numbers
    BlockTerms terms;
    WeightPolicy policy;
    DType expected;
  };
  for (const Case& c : {Case{0, DType::kF32, BlockTerms::kZeros, WeightPolicy::kExact, DType::kF32},
                        {0, DType::kBF16, BlockTerms::kZeros, WeightPolicy::kExact, DType::kBF16},
                        {0, DType::kBF16, BlockTerms::kZeros, WeightPolicy::kInt4, DType::kBF16},
                        {0, DType::kF16, BlockTerms::kZeros, WeightPolicy::kInt8, DType::kF16},
                        {0, DType::kF32, BlockTerms::kZeros, WeightPolicy::kInt4, DType::kF32},
                        {4, DType::kF32, BlockTerms::kZeros, WeightPolicy::kExact, DType::kF32},
                        {4, DType::kF32, BlockTerms::kScales16, WeightPolicy::kExact, DType::kF16}}) {
    TokenGraphOptions o;
    o.bits = c.bits, o.weight = c.type, o.terms = c.terms;
    CompileOptions options{.max_tokens = 8, .max_rows = 4, .max_items = 8, .page_size = 4, .pages = 8};
    options.storage.policy = c.policy, options.kv_dtype = DType::kUndefined;
    const Compiled compiled = compile_decoder(llama_tokens(o), options);
    std::set<DType> found;
    for (const Buffer& buffer : compiled.programs[0].buffers)
      if (buffer.kind == BufferKind::kKvPage) found.insert(buffer.dtype);
    EXPECT_EQ(found, std::set<DType>{c.expected}) << c.bits << " bits of " << name_of(c.type);
  }
}

// Which rows are quantized together is a matter of the weight, not of how many ranks share it.
TEST(Precisions, BlocksAreTheSameOnAnyNumberOfRanks) {
  TokenGraphOptions o;
  o.bits = 4, o.block = 32, o.hidden = 96, o.heads = o.kv_heads = 4, o.head_dim = 24, o.intermediate = 96;
  const DecoderModel model = llama_tokens(o);
  std::set<std::multiset<int32_t>> found;
  for (const int32_t ranks : {1, 2, 4})
    for (const Program& p : compiled(model, Activations::kInt8, ranks).programs) {
      std::multiset<int32_t> blocks;
      for (const WeightUse& use : p.weights)
        if (use.layout == Layout::kPanels) blocks.insert(use.block);
      found.insert(blocks);
    }
  EXPECT_EQ(found.size(), 1u);
}

TEST(Precisions, ArePartOfTheTextAndChecked) {
  Compiled c = compiled(decoder(4, DType::kF32, 4), Activations::kAuto);
  const std::string text = program_text(c.programs[0], c.bindings[0]);
  EXPECT_NE(text.find(" precision=int8"), std::string::npos);
  auto [program, binding] = parse_program(text);
  EXPECT_EQ(program_text(program, binding), text);
  for (Variant& v : program.variants)
    if (is_product(v.code)) v.precision = Precision::kBF16;
  try {
    check_programs(std::span(&program, 1), std::span(&binding, 1));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("does not go with its precision"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace ark::test
