// Every operator over whole rows, by every executor's path but the device's (tests/conformance/cuda): the plain kernel
// and the vector tables, against formulas of their own in doubles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "base/ir/kernel.h"
#include "base/ir/keys.h"
#include "base/ir/rowwise_host.h"
#include "engine/cpu/simd/table.h"

namespace ark::test {
namespace {

using Reals = std::vector<double>;
constexpr double kUnit = 0x1p-24;  // half a unit in the last place of 1

double largest(const Reals& x) { return *std::max_element(x.begin(), x.end()); }
double exponentials(const Reals& x) {
  double sum = 0;
  for (const double top = largest(x); const double v : x) sum += std::exp(v - top);
  return sum;
}
double norm(const Reals& x, double p) {
  double sum = 0;
  for (const double v : x) sum += p == 1 ? std::fabs(v) : v * v;
  return p == 1 ? sum : std::sqrt(sum);
}

// What the elements of a row are, and how far f32 may be from each. Roundings: a sum of n in sixteen lanes adds
// n / 16 + 5 of them; an exponential has the rounding of its argument, as large as that, and 4; a logarithm 6 at most.
struct Exact {
  Reals y, units;  // of kUnit, absolute
};
struct RowOracle {
  std::function<Exact(const Reals& x, double p)> of;
  std::vector<double> parameters = {0};
};

double sum_units(const Reals& x) { return static_cast<double>(x.size()) / 16 + 5; }
double exp_units(const Reals& x) { return largest(x) - *std::min_element(x.begin(), x.end()) + 4; }

Exact softmax_of(const Reals& x, double) {
  Exact e;
  const double top = largest(x), sum = exponentials(x), units = 2 * exp_units(x) + sum_units(x) + 1;
  for (const double v : x) {
    e.y.push_back(std::exp(v - top) / sum);
    e.units.push_back(e.y.back() * units);
  }
  return e;
}
Exact log_softmax_of(const Reals& x, double) {
  Exact e;
  const double top = largest(x), log_sum = std::log(exponentials(x));
  for (const double v : x) {
    e.y.push_back(v - top - log_sum);
    e.units.push_back(2 * std::fabs(v - top) + 8 * log_sum + exp_units(x) + sum_units(x));
  }
  return e;
}
Exact lp_norm_of(const Reals& x, double p) {
  Exact e;
  const double size = norm(x, p), units = sum_units(x) + 4;
  for (const double v : x) {
    e.y.push_back(size == 0 ? 0 : v / size);
    e.units.push_back(std::fabs(e.y.back()) * units);
  }
  return e;
}

const std::map<Op, RowOracle>& row_oracles() {
  static const std::map<Op, RowOracle> all = {
      {Op::kSoftmax, {softmax_of}}, {Op::kLogSoftmax, {log_softmax_of}}, {Op::kLpNorm, {lp_norm_of, {1, 2}}}};
  return all;
}

// How often a function goes over x.
struct CountingRow {
  using F = pointwise::Real<double>;
  using Value = double;
  int passes = 0;
  template <class Fn>
  double sum(Fn f) {
    return ++passes, f(1).v;
  }
  template <class Fn>
  double max(Fn f) {
    return ++passes, f(1).v;
  }
  template <class Fn>
  void set(Fn f) {
    ++passes, f(1);
  }
};

std::vector<float> by_plain_kernel(const rowwise::Row& row, const std::vector<float>& x, double p,
                                   bool along_first) {
  Attributes attributes{{key::kAxis, along_first ? 0 : 1}};
  if (row.p.name) attributes.set(Key<int64_t>{row.p.name}, static_cast<int64_t>(p));
  std::vector<float> out(x.size());
  const auto view = [&](const std::vector<float>& v) {
    TensorView made;
    made.data = reinterpret_cast<std::byte*>(const_cast<float*>(v.data()));
    made.dtype = DType::kF32;
    made.rank = 2;
    made.dims[along_first ? 0 : 1] = static_cast<int64_t>(v.size());
    made.dims[along_first ? 1 : 0] = 1;
    return made;
  };
  const std::vector<TensorView> inputs{view(x)}, outputs{view(out)};
  const KernelCall call{row.op, &attributes, inputs, outputs};
  const Kernel* kernel = find_kernel(row.op);
  for (int64_t tile = 0; tile < kernel->grid(call); ++tile) kernel->tile(call, tile);
  return out;
}

std::vector<float> by_table(Isa isa, Op op, const std::vector<float>& x, double p) {
  std::vector<float> out(x.size());
  simd::table_of(isa).rowwise(op, x.data(), static_cast<float>(p), out.data(),
                              static_cast<int64_t>(x.size()));
  return out;
}

bool same_bits_but_of_nan(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float one, float other) {
    return std::memcmp(&one, &other, sizeof one) == 0 || (std::isnan(one) && std::isnan(other));
  });
}

TEST(Rowwise, TheTableSaysHowOftenAFunctionGoesOverARow) {
  for (const rowwise::Row& row : rowwise::rows()) {
    CountingRow counted;
    rowwise::run(row.op, counted, row.p.fallback);
    EXPECT_EQ(counted.passes, row.passes) << row.name;
  }
}

TEST(Rowwise, EveryPathComputesEveryOperator) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 3);
  for (const rowwise::Row& row : rowwise::rows()) {
    ASSERT_TRUE(row_oracles().contains(row.op)) << row.name << " has no oracle";
    const RowOracle& oracle = row_oracles().at(row.op);
    for (const double p : oracle.parameters) {
      for (const std::size_t n : {1, 2, 15, 16, 17, 31, 33, 100, 1000, 4097}) {
        std::vector<float> x(n);
        for (float& v : x) v = normal(random);
        const Exact expected = oracle.of(Reals(x.begin(), x.end()), p);
        const std::vector<float> first = by_table(Isa::kScalar, row.op, x, p);
        const std::vector<float> plain[] = {by_plain_kernel(row, x, p, false),
                                            by_plain_kernel(row, x, p, true)};
        for (std::size_t i = 0; i < n; ++i) {
          const double exact = expected.y[i], units = expected.units[i];
          EXPECT_TRUE(std::fabs(first[i] - exact) <= units * kUnit + 0x1p-146)
              << row.name << " " << p << ", element " << i << " of " << n << ": " << first[i] << ", exactly "
              << exact;
          for (const auto& got : plain)
            EXPECT_TRUE(std::fabs(got[i] - exact) <= std::fabs(exact) * kUnit * 1.001 + 0x1p-146)
                << row.name << " " << p << ", element " << i << " of " << n << ", plain: " << got[i];
        }
        for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
          if (isa > best_isa()) continue;
          EXPECT_TRUE(same_bits_but_of_nan(by_table(isa, row.op, x, p), first))
              << row.name << " of " << n << " by " << simd::table_of(isa).name;
        }
      }
    }
  }
}

// As numpy and ONNX Runtime have it: a NaN makes all of its row NaN; infinities are what their formulas make of them.
TEST(Rowwise, SpecialValues) {
  const float inf = INFINITY;
  const auto all_paths = [](Op op, const std::vector<float>& x, double p,
                            const std::vector<float>& expected) {
    const rowwise::Row& row = *rowwise::row_of(op);
    EXPECT_TRUE(same_bits_but_of_nan(by_plain_kernel(row, x, p, false), expected)) << row.name << ", plain";
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
      if (isa > best_isa()) continue;
      EXPECT_TRUE(same_bits_but_of_nan(by_table(isa, op, x, p), expected))
          << row.name << simd::table_of(isa).name;
    }
  };
  for (const Op op : {Op::kSoftmax, Op::kLogSoftmax, Op::kLpNorm})
    all_paths(op, {1, NAN, 2}, 2, {NAN, NAN, NAN});
  all_paths(Op::kSoftmax, {0, -inf, 0}, 0, {.5f, 0, .5f});
  all_paths(Op::kSoftmax, {-inf, -inf}, 0, {NAN, NAN});
  all_paths(Op::kLogSoftmax, {0, -inf}, 0, {0, -inf});
  all_paths(Op::kLpNorm, {0, 0, 0}, 1, {0, 0, 0});
  all_paths(Op::kLpNorm, {0, 0, 0}, 2, {0, 0, 0});
  all_paths(Op::kLpNorm, {3, inf}, 2, {0, NAN});
}

}  // namespace
}  // namespace ark::test
