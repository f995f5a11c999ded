// The vector kernels against plain twins, bit for bit, on every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/cpu/simd/table.h"
#include "engine/cpu/step_kernel.h"
#include "engine/program/program.h"
#include "tests/engine/panels.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

std::vector<float> plain_matmul(const Problem& p, const std::vector<float>& x, const std::vector<float>& w) {
  return by_slabs(p, [&](int64_t i, int64_t j, int32_t begin, int32_t end) {
    float sum = 0;
    for (int32_t k = begin; k < end; ++k) sum = std::fma(x[i * p.k + k], w[k * p.n + j], sum);
    return sum;
  });
}

TEST(MatMul, EqualsItsPlainTwinBitForBit) {
  const std::vector<Problem> problems = {
      {1, 5, 3, 16, {0, 5}, DType::kF32},
      {1, 64, 130, 64, {0, 64}, DType::kF32},
      {3, 33, 100, 32, {0, 9, 20, 20, 33}, DType::kF32},
      {7, 40, 64, 64, {0, 20, 40}, DType::kBF16},
      {13, 31, 200, 64, {0, 31}, DType::kF16},
      {12, 16, 70, 48, {0, 2, 4, 6, 8, 10, 12, 14, 16}, DType::kF32},
      {45, 17, 65, 128, {0, 17}, DType::kF32},
      {1, 96, 130, 64, {0, 96}, DType::kU4, 32},
      {2, 77, 40, 64, {0, 32, 77}, DType::kU4, 16},
      {3, 64, 150, 64, {0, 16, 16, 32, 64}, DType::kU8, 16},
      {4, 130, 64, 64, {0, 130}, DType::kU4, 128},
      {1, 65, 33, 48, {0, 65}, DType::kU8, 64},
      {5, 65, 66, 64, {0, 64, 65}, DType::kU8, 64},
      {30, 80, 100, 128, {0, 40, 80}, DType::kU4, 8},
      {61, 33, 64, 64, {0, 33}, DType::kU8, 32},
      {1, 96, 130, 64, {0, 96}, DType::kU4, 32, BlockTerms::kOffsets16},
      {3, 64, 150, 64, {0, 16, 16, 32, 64}, DType::kU8, 16, BlockTerms::kOffsets},
      {30, 80, 100, 128, {0, 40, 80}, DType::kU4, 8, BlockTerms::kOffsets},
      {5, 65, 66, 64, {0, 64, 65}, DType::kU8, 64, BlockTerms::kOffsets16},
      {1, 96, 130, 64, {0, 96}, DType::kU4, 32, BlockTerms::kScales16},
      {3, 64, 150, 64, {0, 16, 16, 32, 64}, DType::kU8, 16, BlockTerms::kScales16},
      {30, 80, 100, 128, {0, 40, 80}, DType::kU4, 8, BlockTerms::kScales16},
      {5, 65, 66, 64, {0, 64, 65}, DType::kU8, 64, BlockTerms::kScales16},
      {1, 65, 130, 64, {0, 65}, DType::kF8E4M3},
      {14, 33, 70, 48, {0, 8, 33}, DType::kF8E4M3},
      {1, 65, 33, 48, {0, 65}, DType::kF8E4M3, 64},
      {3, 64, 150, 64, {0, 16, 16, 32, 64}, DType::kF8E4M3, 16},
      {30, 33, 64, 64, {0, 33}, DType::kF8E4M3, 32},
      {1, 96, 130, 64, {0, 96}, DType::kNF4, 64},
      {3, 77, 40, 64, {0, 32, 77}, DType::kNF4, 16},
      {30, 80, 100, 128, {0, 40, 80}, DType::kNF4, 32},
      {2, 130, 64, 64, {0, 130}, DType::kFP4, 128},
      {30, 33, 64, 64, {0, 33}, DType::kFP4, 8}};
  uint32_t seed = 1;
  for (const Problem& p : problems) {
    const auto x = random_floats(static_cast<std::size_t>(p.m * p.k), ++seed);
    const Packed w = pack(p, random_floats(static_cast<std::size_t>(p.k * p.n), ++seed));
    const auto bias = random_floats(static_cast<std::size_t>(p.n), ++seed);
    const auto residual = random_floats(static_cast<std::size_t>(p.m * p.n), ++seed);
    std::vector<float> expected = plain_matmul(p, x, w.values);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const float v = expected[i] + bias[i % static_cast<std::size_t>(p.n)];
      expected[i] = (v > 0 ? v : 0.f) + residual[i];
    }
    for (const Isa isa : isas()) {
      std::vector<float> out(expected.size(), NAN),
          packed(static_cast<std::size_t>(simd::packed_room(p.m, p.k)));
      simd::MatMul a;
      a.x = x.data();
      a.m = p.m, a.k = p.k, a.n = p.n;
      a.w = w.bytes.data();
      a.stored = p.stored;
      a.panel = p.panel;
      a.block = p.block;
      a.terms = p.terms;
      a.slabs = p.slabs.data();
      a.slab_count = static_cast<int32_t>(p.slabs.size()) - 1;
      a.epilogue = {kEpilogueBias | kEpilogueRelu | kEpilogueResidual, bias.data(), residual.data()};
      a.out = out.data();
      a.last_panel = (p.n + p.panel - 1) / p.panel;
      a.packed = packed.data();
      // In two calls: rows are independent of each other's company.
      for (const int64_t border : {p.m / 3, p.m}) {
        a.last_row = border;
        if (a.first_row < border) simd::table_of(isa).matmul(a);
        a.first_row = border;
      }
      EXPECT_TRUE(same(out, expected)) << "m " << p.m << " n " << p.n << " " << simd::table_of(isa).name;
    }
  }
}

// Whoever takes which rows and panels: each element is written, with the same bits.
TEST(MatMul, ProcessorsShareAnyNumberOfRows) {
  Scratch scratch(1 << 20);
  for (const int64_t m : {1, 33, 96, 150, 517})
    for (const int64_t n : {192, is_sanitized() ? 400 : 1900})
      for (const OpCode code : {OpCode::kMatMul, OpCode::kGatedMatMul})
        for (const Precision precision : {Precision::kF32, Precision::kInt8}) {
          const Problem p{m,
                          64,
                          n,
                          64,
                          {0, 64},
                          precision == Precision::kInt8 ? DType::kU8 : DType::kF32,
                          precision == Precision::kInt8 ? 32 : 0};
          auto x = random_floats(static_cast<std::size_t>(m * p.k), 1);
          Packed w = pack(p, random_floats(static_cast<std::size_t>(p.k * n), 2));
          const WeightUse use{.panel = p.panel, .stored = p.stored, .block = p.block};
          const Variant variant{.code = code, .recipe = {p.slabs}, .precision = precision};
          const auto view = [](void* data, DType type, int64_t rows, int64_t columns) {
            return TensorView{static_cast<std::byte*>(data), type}.sized(std::vector{rows, columns});
          };
          const TensorView weight = view(w.bytes.data(), p.stored, p.k, n);
          const auto run = [&](int32_t processors) {
            std::vector<float> out(static_cast<std::size_t>(m * n), NAN);
            std::vector<TensorView> operands(code == OpCode::kMatMul ? 4 : 5);
            operands[0] = view(x.data(), DType::kF32, m, p.k);
            operands[1] = weight;
            if (code == OpCode::kGatedMatMul) operands[3] = weight;
            operands.push_back(view(out.data(), DType::kF32, m, n));
            PhaseCall call;
            call.variant = &variant;
            call.weight = &use;
            call.operands = operands;
            call.simd = &simd::table_of(best_isa());
            call.scratch = &scratch;
            call.grid = (m + kMatMulRows - 1) / kMatMulRows * ((n + p.panel - 1) / p.panel);
            call.processors = processors;
            for (int32_t& processor = call.processor; processor < processors; ++processor) {
              scratch.reset();
              find_step_kernel(code).run(call);
            }
            return out;
          };
          const std::vector<float> alone = run(1);
          EXPECT_EQ(std::count_if(alone.begin(), alone.end(), [](float v) { return std::isnan(v); }), 0);
          for (const int32_t processors : {2, 3, 4, 6, 19})
            EXPECT_TRUE(same(run(processors), alone)) << m << " " << n << " " << processors;
        }
}

// Products of each code with 1: the number itself, whether codes stand alone or in blocks.
TEST(MatMul, EveryCodeOfF8E4M3IsItsNumber) {
  const float one = 1;
  const int32_t slabs[] = {0, 1}, panel = 256, block = 8;
  std::vector<std::byte> numbers(256), codes(256 * 5 + block / 2 * 256 * 2);
  for (int i = 0; i < 256; ++i) {
    const float scale = 1;
    std::memcpy(&codes[i * 4], &scale, sizeof scale);
    numbers[i] = codes[256 * 5 + i * 2] = static_cast<std::byte>(i);
  }
  for (const Isa isa : isas()) {
    for (const bool in_blocks : {false, true}) {
      std::vector<float> out(256, 7);
      simd::MatMul a{.x = &one, .m = 1, .k = 1, .n = 256, .w = (in_blocks ? codes : numbers).data()};
      a.stored = DType::kF8E4M3, a.panel = panel, a.block = in_blocks ? block : 0;
      a.slabs = slabs, a.out = out.data(), a.last_row = a.last_panel = 1;
      simd::table_of(isa).matmul(a);
      for (int i = 0; i < 256; ++i) {
        const int exponent = i >> 3 & 15, mantissa = i & 7;
        const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                         : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
        if ((i & 127) == 127)
          EXPECT_TRUE(std::isnan(out[i])) << i << " " << simd::table_of(isa).name;
        else
          EXPECT_EQ(out[i], i < 128 ? size : -size) << i << " " << simd::table_of(isa).name;
      }
    }
  }
}

TEST(Rows, NormsAreEqualOnAllInstructionSetsAndRight) {
  for (const int64_t n : {1, 15, 64, 77}) {
    const auto x = random_floats(static_cast<std::size_t>(n), 3, 4),
               scale = random_floats(static_cast<std::size_t>(n), 4);
    for (const bool rms : {false, true}) {
      std::vector<float> first;
      for (const Isa isa : isas()) {
        std::vector<float> out(static_cast<std::size_t>(n));
        simd::table_of(isa).norm({x.data(), scale.data(), nullptr, out.data(), n, 1e-5f, rms});
        if (first.empty()) first = out;
        EXPECT_TRUE(same(first, out)) << simd::table_of(isa).name;
      }
      double mean = 0, square = 0;
      for (float v : x) mean += rms ? 0 : v / static_cast<double>(n);
      for (float v : x) square += (v - mean) * (v - mean) / static_cast<double>(n);
      for (std::size_t i = 0; i < first.size(); ++i) {
        const double exact = (x[i] - mean) / std::sqrt(square + 1e-5) * scale[i];
        // Mean and variance sum n terms in sixteen chains: n / 16 + 8 roundings each; then four more.
        const double bound =
            (static_cast<double>(n) / 16 + 16) * 0x1p-23 * (std::fabs(exact) + 4 / std::sqrt(square + 1e-5));
        EXPECT_TRUE(std::fabs(first[i] - exact) <= bound) << n << " " << i;
      }
    }
  }
}

// Greatest error in units of the last place of the exact value, at least of the smallest normal's.
double ulps(float got, double exact) {
  if (std::isinf(exact) || std::fabs(exact) > 3.4028235e38) return std::isinf(got) ? 0 : 1e9;
  int exponent;
  std::frexp(std::max(std::fabs(exact), 0x1p-126), &exponent);
  return std::fabs(got - exact) / std::ldexp(1.0, exponent - 24);
}

TEST(Rows, TranscendentalsKeepTheirStatedErrors) {
  std::vector<float> x;
  for (int e = -30; e <= 7; ++e) {
    for (int i = 0; i < 64; ++i) {
      const float v = std::ldexp(1.f + static_cast<float>(i) / 64, e);
      x.push_back(v);
      x.push_back(-v);
    }
  }
  while (x.size() % 16) x.push_back(0);
  struct Function {
    Op op;
    double (*exact)(double);
    double ulp, absolute;
  };
  const std::vector<Function> functions = {
      {Op::kExp, [](double v) { return std::exp(v); }, 2, 0},
      {Op::kTanh, [](double v) { return std::tanh(v); }, 3, 0},
      {Op::kSigmoid, [](double v) { return 1 / (1 + std::exp(-v)); }, 3, 0x1p-126},
      {Op::kErf, [](double v) { return std::erf(v); }, 0, 1.2e-7}};
  for (const Function& f : functions) {
    std::vector<float> first;
    for (const Isa isa : isas()) {
      std::vector<float> out(x.size());
      simd::table_of(isa).pointwise(f.op, x.data(), nullptr, 0, 0, out.data(),
                                    static_cast<int64_t>(x.size()));
      if (first.empty()) first = out;
      EXPECT_TRUE(same(first, out)) << name_of(f.op) << " " << simd::table_of(isa).name;
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = f.exact(x[i]);
      const bool good =
          (f.ulp > 0 && ulps(first[i], exact) <= f.ulp) || std::fabs(first[i] - exact) <= f.absolute;
      ASSERT_TRUE(good) << name_of(f.op) << "(" << x[i] << ") = " << first[i] << ", exactly " << exact;
    }
  }
}

TEST(Rows, SpecialValuesPass) {
  for (const Isa isa : isas()) {
    alignas(64) float x[16] = {NAN, INFINITY, -INFINITY, 89, -104, -200, 0, -0.f}, y[16];
    simd::table_of(isa).pointwise(Op::kExp, x, nullptr, 0, 0, y, 16);
    EXPECT_TRUE(std::isnan(y[0]) && std::isinf(y[1]) && y[2] == 0 && std::isinf(y[3]) && y[5] == 0 &&
                y[6] == 1);
    simd::table_of(isa).pointwise(Op::kTanh, x, nullptr, 0, 0, y, 16);
    EXPECT_TRUE(std::isnan(y[0]) && y[1] == 1 && y[2] == -1 && std::signbit(y[7]));
    simd::table_of(isa).pointwise(Op::kErf, x, nullptr, 0, 0, y, 16);
    EXPECT_TRUE(std::isnan(y[0]) && y[1] == 1 && y[2] == -1);
  }
}

TEST(Rows, ArgmaxTakesTheLowestOfEquals) {
  for (const Isa isa : isas()) {
    std::vector<float> x(100, -1);
    x[3] = -INFINITY;
    x[41] = x[77] = 5;
    EXPECT_EQ(simd::table_of(isa).argmax(x.data(), 100), 41);
    EXPECT_EQ(simd::table_of(isa).argmax(x.data() + 42, 58), 35);
  }
}

TEST(Rows, ArgmaxSeesEveryNaN) {
  for (const Isa isa : isas())
    for (const std::size_t n : {1u, 16u, 40u})
      for (std::size_t at = 0; at < n; ++at)
        for (const float nan : {NAN, -NAN}) {
          std::vector<float> x(n, 1);
          x[at] = nan;
          EXPECT_EQ(simd::table_of(isa).argmax(x.data(), static_cast<int64_t>(n)), -1) << n << " " << at;
        }
}

}  // namespace
}  // namespace ark::test
