// The kernels of plain graphs over vectors: on every instruction set the bits of a plain twin, and against the portable
// kernels, run in double, within what f32 may err.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "base/ir/kernel.h"
#include "base/ir/keys.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/table.h"
#include "tests/engine/panels.h"
#include "tests/fixtures.h"

namespace ark::test {
namespace {

constexpr double kUnit = 0x1p-24;  // what one operation of f32 errs, relatively

Tensor random_tensor(Dims dims, std::mt19937& random) {
  Tensor t = Tensor::empty(DType::kF32, std::move(dims));
  std::uniform_real_distribution<float> numbers(-1, 1);
  for (int64_t i = 0; i < t.size(); ++i) t.as<float>()[i] = numbers(random);
  return t;
}

template <typename F>
Tensor in_double(const Tensor& of, F f) {
  Tensor t = Tensor::empty(DType::kF64, of.dims);
  for (int64_t i = 0; i < t.size(); ++i) t.as<double>()[i] = f(static_cast<double>(of.as<float>()[i]));
  return t;
}

// All tiles, the last first: they do not build on each other.
Tensor run_kernel(const Kernel& kernel, const Attributes& attributes, const std::vector<Tensor>& inputs) {
  std::vector<TensorView> in, out(1);
  for (const Tensor& t : inputs) in.push_back(t.dtype == DType::kUndefined ? TensorView{} : view_of(t));
  const KernelCall call{kernel.op, &attributes, in, out};
  const OutputType type = kernel.shapes(call)[0];
  Tensor result = Tensor::empty(type.dtype, type.dims);
  std::memset(result.data.get(), 0xFF,
              static_cast<std::size_t>(result.bytes()));  // NaN where nothing is written
  out[0] = view_of(result);
  for (int64_t tile = kernel.grid(call); tile-- > 0;) kernel.tile(call, tile);
  return result;
}

// |fast - exact| <= operations * kUnit * (what comes out of the operands' absolute values), of an operator that adds up
// products of its operands: each of so many roundings errs by a part of a sum that is no larger than that.
void expect_sums(Op op, const Attributes& attributes, const std::vector<Tensor>& inputs, int64_t operations) {
  std::vector<Tensor> exact, sizes;
  for (const Tensor& t : inputs) {
    const bool is_real = t.dtype == DType::kF32;
    exact.push_back(is_real ? in_double(t, [](double v) { return v; }) : t);
    sizes.push_back(is_real ? in_double(t, [](double v) { return std::fabs(v); }) : t);
  }
  const Tensor fast = run_kernel(*find_cpu_kernel(op), attributes, inputs),
               wanted = run_kernel(*find_kernel(op), attributes, exact),
               most = run_kernel(*find_kernel(op), attributes, sizes);
  ASSERT_EQ(fast.dims, wanted.dims);
  EXPECT_NE(find_cpu_kernel(op), find_kernel(op));
  for (int64_t i = 0; i < fast.size(); ++i) {
    const double bound = static_cast<double>(operations) * kUnit * most.as<double>()[i] + 0x1p-140,
                 difference = std::fabs(fast.as<float>()[i] - wanted.as<double>()[i]);
    ASSERT_TRUE(difference <= bound) << name_of(op) << " element " << i << ": " << fast.as<float>()[i]
                                     << " not " << wanted.as<double>()[i];
  }
}

TEST(BlockProduct, EqualsItsPlainTwinBitForBit) {
  std::mt19937 random(3);
  struct Case {
    int64_t m, k, n, cut;
    bool turned;
  };
  for (const Case& c : {Case{1, 7, 16, 7, false},
                        {5, 33, 70, 20, false},
                        {12, 64, 64, 64, true},
                        {50, 130, 33, 65, false},
                        {97, 20, 129, 20, true},
                        {13, 300, 100, 256, true}}) {
    const Tensor a = random_tensor({c.m, c.k}, random), bias = random_tensor({c.m}, random);
    constexpr int64_t kPanel = simd::BlockProduct::kPanel;
    const int64_t panels = (c.n + kPanel - 1) / kPanel;
    const Tensor b = random_tensor({panels, c.k, kPanel}, random);
    std::vector<float> expected(static_cast<std::size_t>(c.m * c.n));
    const auto a_at = [&](int64_t i, int64_t k) {
      return a.as<float>()[c.turned ? k * c.m + i : i * c.k + k];
    };
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < c.k; ++k)
          sum = std::fma(a_at(i, k), b.as<float>()[(j / kPanel * c.k + k) * kPanel + j % kPanel], sum);
        expected[static_cast<std::size_t>(i * c.n + j)] = sum + bias.as<float>()[i];
      }
    for (const Isa isa : isas()) {
      std::vector<float> out(expected.size(), NAN),
          packed(static_cast<std::size_t>(simd::BlockProduct::kPackedRows * c.k));
      for (int64_t at = 0; at < c.k; at += c.cut) {  // a chain goes on where it was left
        simd::BlockProduct p;
        p.a = a.as<float>() + at * (c.turned ? c.m : 1);
        p.a_row = c.turned ? 1 : c.k, p.a_column = c.turned ? c.m : 1;
        p.b = b.as<float>() + at * kPanel, p.b_panel = c.k * kPanel;
        p.m = c.m, p.n = c.n, p.k = std::min(c.cut, c.k - at);
        p.out = out.data(), p.out_row = c.n;
        p.opens = at == 0;
        p.row_bias = at + c.cut >= c.k ? bias.as<float>() : nullptr;
        p.packed = packed.data();
        simd::table_of(isa).block_product(p);
      }
      EXPECT_EQ(0, std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)))
          << c.m << " x " << c.k << " x " << c.n << " " << simd::table_of(isa).name;
    }
  }
}

TEST(ShiftedSum, EqualsItsPlainTwinBitForBit) {
  std::mt19937 random(4);
  for (const int64_t n : {1, 16, 63, 200}) {
    const std::vector<int64_t> shifts{0, 3, 17, 40};
    const Tensor x = random_tensor({n + 64}, random), factors = random_tensor({4}, random);
    std::vector<float> expected;
    for (int64_t i = 0; i < n; ++i) {
      float sum = 0;
      for (std::size_t t = 0; t < shifts.size(); ++t)
        sum = std::fma(factors.as<float>()[t], x.as<float>()[shifts[t] + i], sum);
      expected.push_back(sum + 0.25f);
    }
    for (const Isa isa : isas()) {
      std::vector<float> out(static_cast<std::size_t>(n + 16), NAN);
      simd::table_of(isa).shifted_sum({.x = x.as<float>(),
                                       .shifts = shifts.data(),
                                       .factors = factors.as<float>(),
                                       .terms = 4,
                                       .bias = 0.25f,
                                       .out = out.data(),
                                       .n = n});
      EXPECT_EQ(0, std::memcmp(out.data(), expected.data(), expected.size() * sizeof(float)));
    }
  }
}

TEST(VectorKernels, MatMulErrsAsF32May) {
  std::mt19937 random(5);
  const auto product = [&](Dims a, Dims b, int64_t turned_a, int64_t turned_b, int64_t k) {
    expect_sums(Op::kMatMul, {{key::kTransA, turned_a}, {key::kTransB, turned_b}},
                {random_tensor(std::move(a), random), random_tensor(std::move(b), random)}, k + 2);
  };
  product({1, 300}, {300, 70}, 0, 0, 300);
  product({1, 70}, {33, 70}, 0, 1, 70);
  product({130, 257}, {257, 300}, 0, 0, 257);
  product({70, 20}, {70, 40}, 1, 0, 70);
  product({3, 1, 5, 9}, {2, 9, 17}, 0, 0, 9);
  product({4, 5, 33}, {33, 65}, 0, 0, 33);
  product({4, 5, 33}, {65, 33}, 0, 1, 33);
  product({33}, {33, 5}, 0, 0, 33);
  product({2, 6, 33}, {33}, 0, 0, 33);
  product({5, 0}, {0, 3}, 0, 0, 0);
}

TEST(VectorKernels, ConvolutionsErrAsF32May) {
  std::mt19937 random(6);
  const auto among = [&](std::initializer_list<int64_t> of) { return of.begin()[random() % of.size()]; };
  for (int64_t round = 0; round < rounds(60, 600); ++round) {
    const int64_t spatial = among({1, 2, 2, 2, 3}), groups = among({1, 1, 2, 6}), inputs = among({1, 3, 20}),
                  outputs = among({1, 2, 5, 40});
    Dims x{among({1, 2}), groups * inputs}, w{groups * outputs, inputs}, turned{groups * inputs, outputs},
        strides, dilations, pads;
    int64_t taps = 1;
    for (int64_t a = 0; a < spatial; ++a) {
      const int64_t kernel = among({1, 2, 3, 5});
      strides.push_back(among({1, 1, 2, 3}));
      dilations.push_back(among({1, 1, 2}));
      x.push_back((kernel - 1) * dilations.back() + 1 + among({0, 1, 6, 17}));
      w.push_back(kernel), turned.push_back(kernel);
      taps *= kernel;
    }
    for (int64_t a = 0; a < 2 * spatial; ++a) pads.push_back(among({0, 0, 1, 2}));
    const Tensor image = random_tensor(x, random), bias = random_tensor({groups * outputs}, random);
    const Attributes attributes{
        {key::kStrides, strides}, {key::kDilations, dilations}, {key::kPads, pads}, {key::kGroup, groups}};
    expect_sums(Op::kConv, attributes, {image, random_tensor(w, random), bias}, inputs * taps + 2);
    // An output of a transposed one gets at most all taps of all inputs; strides leave larger ones.
    bool is_empty = false;
    for (int64_t a = 0; a < spatial; ++a)
      is_empty = is_empty || (x[2 + a] - 1) * strides[a] + (w[2 + a] - 1) * dilations[a] + 1 <=
                                 pads[a] + pads[a + spatial];
    if (!is_empty)
      expect_sums(Op::kConvTranspose, attributes, {image, random_tensor(turned, random), bias},
                  inputs * taps + 2);
    if (HasFatalFailure()) return;
  }
}

// Large planes are cut into parts, images wider than a part is long are left to the portable kernel.
TEST(VectorKernels, LargePlanesAreCut) {
  std::mt19937 random(7);
  expect_sums(Op::kConv, {{key::kGroup, 2}, {key::kPads, Dims{1, 1, 1, 1}}},
              {random_tensor({1, 2, 300, 400}, random), random_tensor({2, 1, 3, 3}, random)}, 11);
  expect_sums(Op::kConv, {{key::kStrides, Dims{2}}},
              {random_tensor({1, 1, 200001}, random), random_tensor({1, 1, 3}, random)}, 5);
  expect_sums(Op::kConv, {}, {random_tensor({1, 1, 2, 70000}, random), random_tensor({1, 1, 2, 2}, random)},
              6);
}

TEST(VectorKernels, PoolsAndSumsErrAsF32May) {
  std::mt19937 random(8);
  const Tensor x = random_tensor({2, 3, 9, 37}, random);
  for (const int64_t counts : {0, 1}) {
    const Attributes pool{{key::kKernelShape, Dims{3, 4}},
                          {key::kStrides, Dims{2, 3}},
                          {key::kPads, Dims{1, 2, 1, 1}},
                          {key::kCountIncludePad, counts}};
    expect_sums(Op::kAveragePool, pool, {x}, 14);
    const Tensor wanted = run_kernel(*find_kernel(Op::kMaxPool), pool, {x}),
                 fast = run_kernel(*find_cpu_kernel(Op::kMaxPool), pool, {x});
    EXPECT_EQ(0, std::memcmp(wanted.data.get(), fast.data.get(), static_cast<std::size_t>(fast.bytes())));
  }
  expect_sums(Op::kGlobalAveragePool, {}, {x}, 37 * 9 + 2);
  for (const Dims& axes : {Dims{3}, Dims{1}, Dims{2, 3}, Dims{0, 1, 2, 3}, Dims{0, 2}, Dims{0}})
    for (const int64_t keep : {0, 1}) {
      const Attributes reduced{{key::kAxes, axes}, {key::kKeepdims, keep}};
      expect_sums(Op::kReduceSum, reduced, {x}, x.size() + 2);
      expect_sums(Op::kReduceMean, reduced, {x}, x.size() + 2);
      for (const Op op : {Op::kReduceMax, Op::kReduceMin}) {
        const Tensor wanted = run_kernel(*find_kernel(op), reduced, {x}),
                     fast = run_kernel(*find_cpu_kernel(op), reduced, {x});
        EXPECT_EQ(0, std::memcmp(wanted.data.get(), fast.data.get(), static_cast<std::size_t>(fast.bytes())));
      }
    }
}

TEST(VectorKernels, TurnedRowsOfMatricesThatShareTheRightOne) {
  std::mt19937 random(12);
  const Tensor right = random_tensor({5, 20}, random);
  expect_sums(Op::kMatMul, {{key::kTransA, 1}}, {random_tensor({3, 5, 1}, random), right}, 7);
  expect_sums(Op::kMatMul, {{key::kTransA, 1}}, {random_tensor({3, 5, 2}, random), right}, 7);
}

// Operands without elements have no memory, in which no address may be reckoned either (the sanitizer's word).
TEST(VectorKernels, ProductsOverNothingAreZeros) {
  std::mt19937 random(16);
  expect_sums(Op::kMatMul, {}, {random_tensor({300, 0}, random), random_tensor({0, 700}, random)}, 1);
  expect_sums(Op::kConvTranspose, {},
              {random_tensor({1, 0, 4, 4}, random), random_tensor({0, 99, 3, 3}, random)}, 1);
}

// Taps far apart, of which each output row would fill a thread's room.
TEST(VectorKernels, ConvsOfFarTapsAreCutAsProducts) {
  std::mt19937 random(13);
  const std::vector<Tensor> in{random_tensor({1, 1, 70000}, random), random_tensor({1, 1, 2}, random)};
  const Attributes far{{key::kDilations, Dims{65535}}};
  expect_sums(Op::kConv, far, in, 4);
  Tensor y = Tensor::empty(DType::kF32, {1, 1, 70000 - 65535});
  const std::vector<TensorView> views{view_of(in[0]), view_of(in[1])}, out{view_of(y)};
  EXPECT_LE(find_cpu_kernel(Op::kConv)->grid({Op::kConv, &far, views, out}), 64);
}

// Windows that see little of long rows are taken one by one, with the portable sums in double.
TEST(VectorKernels, PoolsOfSparseRowsReadWhatTheySee) {
  std::mt19937 random(14);
  const Tensor x = random_tensor({1, 1, 60, 5000}, random);
  const Attributes pool{{key::kKernelShape, Dims{50, 1}}, {key::kStrides, Dims{1, 4000}}};
  const Tensor wanted = run_kernel(*find_kernel(Op::kAveragePool), pool, {x}),
               fast = run_kernel(*find_cpu_kernel(Op::kAveragePool), pool, {x});
  EXPECT_EQ(0, std::memcmp(wanted.data.get(), fast.data.get(), static_cast<std::size_t>(fast.bytes())));
}

TEST(VectorKernels, LongSumsErrLittle) {
  Tensor x = Tensor::empty(DType::kF32, {200000, 2});
  std::fill_n(x.as<float>(), x.size(), 0.1f);
  expect_sums(Op::kReduceMean, {{key::kAxes, Dims{0}}}, {x}, 1024 + 200000 / 1024);
}

TEST(VectorKernels, ExtremesPassNanOn) {
  Tensor x = Tensor::zeros(DType::kF32, {2, 70});
  x.as<float>()[33] = NAN;
  for (const Op op : {Op::kReduceMax, Op::kReduceMin}) {
    const Tensor y = run_kernel(*find_cpu_kernel(op), {{key::kAxes, Dims{1}}, {key::kKeepdims, 0}}, {x});
    EXPECT_TRUE(std::isnan(y.as<float>()[0]));
    EXPECT_EQ(y.as<float>()[1], 0);
  }
  x.dims = {1, 2, 70};
  for (const Kernel* kernel : {find_kernel(Op::kGlobalMaxPool), find_cpu_kernel(Op::kGlobalMaxPool)})
    EXPECT_TRUE(std::isnan(run_kernel(*kernel, {}, {x}).as<float>()[0]));
}

// Operands that stay along some axes, whatever the runs: exact, as one rounding is.
TEST(VectorKernels, PointwiseBroadcasts) {
  std::mt19937 random(9);
  const std::vector<std::pair<Dims, Dims>> cases{{{3, 40, 50}, {3, 40, 50}},
                                                 {{3, 40, 50}, {40, 1}},
                                                 {{3, 40, 50}, {50}},
                                                 {{3, 1, 5}, {7, 1}},
                                                 {{}, {5}},
                                                 {{2, 3, 1}, {2, 1, 2000}},
                                                 {{1}, {1}},
                                                 {{4, 9000}, {1, 1}},
                                                 {{6, 1, 33}, {6, 5, 1}}};
  for (const auto& [a, b] : cases)
    for (const Op op : {Op::kSub, Op::kDiv, Op::kMax}) {
      const std::vector<Tensor> in{random_tensor(a, random), random_tensor(b, random)};
      const Tensor wanted = run_kernel(*find_kernel(op), {}, in),
                   fast = run_kernel(*find_cpu_kernel(op), {}, in);
      ASSERT_EQ(wanted.dims, fast.dims);
      EXPECT_EQ(0, std::memcmp(wanted.data.get(), fast.data.get(), static_cast<std::size_t>(fast.bytes())));
    }
}

// Means and squares of n numbers up to 1 in sixteen lanes err by less than n / 16 + 8 roundings each, and what is
// divided by the deviation d by so many more as 1 / d has; functions by what engine/cpu/simd/math.h says.
void expect_near(Op op, const Attributes& attributes, const std::vector<Tensor>& inputs, double bound) {
  std::vector<Tensor> exact;
  for (const Tensor& t : inputs)
    exact.push_back(t.dtype == DType::kF32 ? in_double(t, [](double v) { return v; }) : t);
  const Tensor fast = run_kernel(*find_cpu_kernel(op), attributes, inputs),
               wanted = run_kernel(*find_kernel(op), attributes, exact);
  EXPECT_NE(find_cpu_kernel(op), find_kernel(op));
  for (int64_t i = 0; i < fast.size(); ++i) {
    const double difference = std::fabs(fast.as<float>()[i] - wanted.as<double>()[i]);
    ASSERT_TRUE(difference <= bound) << name_of(op) << " element " << i << " differs by " << difference;
  }
}

// The lanes' sums err by 2^14 roundings of 2^24 each: by thousandths of a deviation, if nothing mended that.
TEST(VectorKernels, NormsOfManyNumbersFarFromZeroAreNear) {
  std::mt19937 random(11);
  Tensor x = random_tensor({1, 1, 1 << 18}, random);
  for (int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] += 1000;
  expect_near(Op::kGroupNorm, {{key::kGroups, 1}}, {x}, 1e-4);
}

TEST(VectorKernels, NormsAndRecurrentLayersAreNear) {
  std::mt19937 random(10);
  const Tensor x = random_tensor({2, 6, 7, 50}, random), channel = random_tensor({6}, random);
  Tensor variance = random_tensor({6}, random);
  for (int64_t i = 0; i < 6; ++i) variance.as<float>()[i] = std::fabs(variance.as<float>()[i]) + 0.5f;
  // Deviations are about 0.58: 2 * (350 / 16 + 8) / 0.58 roundings of numbers up to 4.
  const double bound = 2 * (350.0 / 16 + 8) / 0.5 * 4 * kUnit;
  expect_near(Op::kLayerNorm, {{key::kAxis, -1}},
              {x, random_tensor({50}, random), random_tensor({50}, random)}, bound);
  expect_near(Op::kRmsNorm, {{key::kAxis, -1}}, {x, random_tensor({50}, random)}, bound);
  expect_near(Op::kGroupNorm, {{key::kGroups, 3}}, {x, channel, channel}, 4 * bound);
  expect_near(Op::kBatchNorm, {}, {x, channel, channel, channel, variance}, 16 * kUnit);
  for (const int64_t axis : {-1, 1, 2}) expect_near(Op::kSoftmax, {{key::kAxis, axis}}, {x}, 32 * kUnit);
  // 5 steps of gates up to 8 in size, whose sums of 20 products err by 22 roundings, through functions whose slope is
  // at most 1: each step hands on what the one before erred, no more than twice.
  const int64_t hidden = 20;
  for (const auto& [op, gates] : {std::pair{Op::kLstm, 4}, {Op::kGru, 3}, {Op::kRnn, 1}}) {
    std::vector<std::string> names;
    if (op == Op::kLstm) names = {"Sigmoid", "Tanh", "Tanh", "Sigmoid", "Tanh", "Tanh"};
    if (op == Op::kGru) names = {"Sigmoid", "Tanh", "Sigmoid", "Tanh"};
    if (op == Op::kRnn) names = {"Tanh", "Tanh"};
    const Attributes layer{{key::kActivations, names},
                           {key::kActivationParameters, std::vector<double>(2 * names.size())},
                           {key::kDirection, "bidirectional"},
                           {key::kLinearBeforeReset, 1}};
    expect_near(
        op, layer,
        {random_tensor({5, 6, 2, gates * hidden}, random), random_tensor({2, gates * hidden, hidden}, random),
         Tensor::of<int32_t>(DType::kI32, {6}, std::vector<int32_t>{5, 5, 1, 5, 0, 3})},
        22 * 8 * 32 * kUnit);
  }
}

}  // namespace
}  // namespace ark::test
