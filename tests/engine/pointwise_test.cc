// Every pointwise operator over special and common values, by every executor's path: the plain kernel, the vector
// tables, the device's functions (compiled for the host) and doubles, against formulas of their own in doubles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/ir/kernel.h"
#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"
#include "engine/cpu/simd/table.h"
#define ARK_DEVICE_HEADER "tests/emulator/device_emulated.h"
#include "engine/cuda/bodies/number.h"

namespace ark::test {
namespace {

const float kInf = INFINITY;
const std::vector<float>& values() {
  static const std::vector<float> all = {
      NAN,   kInf,   -kInf, 0.f,   -0.f,  1e-40f, -1e-40f, 1e-30f, -1e-30f, 0.3f,  -0.3f, 0.5f,  -0.5f,
      0.75f, 1.f,    -1.f,  1.5f,  -1.5f, 2.5f,   -2.5f,   3.f,    -3.f,    5.3f,  -5.3f, 7.f,   -7.f,
      20.5f, -20.5f, 25.f,  -25.f, 88.f,  -88.f,  100.f,   -100.f, 1e4f,    -1e4f, 1e30f, -1e30f};
  return all;
}

// The exact value of (a, b, p, q), and how far f32 may be from it: `units` half units in the last place of the
// larger of the value and `floor(a)`, the size of what cancels in the formula.
struct Oracle {
  std::function<double(double, double, double, double)> exact;
  double units = 1;
  double (*floor)(double) = [](double) { return 0.; };
  std::vector<std::pair<float, float>> parameters = {{0.f, 0.f}};
};

double one(double) { return 1; }
double size(double a) { return std::isfinite(a) ? std::fabs(a) : 0; }
double sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }

Oracle of(
    double (*f)(double), double units, double (*floor)(double) = [](double) { return 0.; }) {
  return {[f](double a, double, double, double) { return f(a); }, units, floor};
}

// Units: one for each rounding and the stated errors of exp, tanh (2, 3 ulp: 4, 6 units) and of the C library
// (< 3 ulp), through the conditions of the functions around them. erf: 1.2e-7 < 3 units of one.
const std::map<Op, Oracle>& oracles() {
  using D = double;
  static const std::map<Op, Oracle> all = {
      {Op::kNeg, of([](D x) { return -x; }, 0)},
      {Op::kAbs, of([](D x) { return std::fabs(x); }, 0)},
      {Op::kSign, of([](D x) { return x > 0   ? 1.
                                      : x < 0 ? -1.
                                              : x; }, 0)},
      {Op::kFloor, of([](D x) { return std::floor(x); }, 0)},
      {Op::kCeil, of([](D x) { return std::ceil(x); }, 0)},
      {Op::kRound, of([](D x) { return std::nearbyint(x); }, 0)},
      {Op::kReciprocal, of([](D x) { return 1 / x; }, 1)},
      {Op::kSqrt, of([](D x) { return std::sqrt(x); }, 1)},
      {Op::kRsqrt, of([](D x) { return 1 / std::sqrt(x); }, 3)},
      {Op::kExp, of([](D x) { return std::exp(x); }, 4)},
      {Op::kLog, of([](D x) { return std::log(x); }, 6)},
      {Op::kSin, of([](D x) { return std::sin(x); }, 6)},
      {Op::kCos, of([](D x) { return std::cos(x); }, 6)},
      {Op::kTan, of([](D x) { return std::tan(x); }, 6)},
      {Op::kAsin, of([](D x) { return std::asin(x); }, 6)},
      {Op::kAcos, of([](D x) { return std::acos(x); }, 6)},
      {Op::kAtan, of([](D x) { return std::atan(x); }, 6)},
      {Op::kSinh, of([](D x) { return std::sinh(x); }, 6)},
      {Op::kCosh, of([](D x) { return std::cosh(x); }, 6)},
      {Op::kTanh, of([](D x) { return std::tanh(x); }, 6)},
      {Op::kAsinh, of([](D x) { return std::asinh(x); }, 6)},
      {Op::kAcosh, of([](D x) { return std::acosh(x); }, 6)},
      {Op::kAtanh, of([](D x) { return std::atanh(x); }, 6)},
      {Op::kErf, of([](D x) { return std::erf(x); }, 3, one)},
      {Op::kSigmoid, of(sigmoid, 8)},
      {Op::kRelu, of([](D x) { return x < 0 ? 0 : x; }, 0)},
      {Op::kSilu, of([](D x) { return x * sigmoid(x); }, 9)},
      {Op::kQuickGelu,
       {[](D x, D, D p, D) { return x * sigmoid(p * x); },
        9 + 1.702 * 100,
        size,
        {{1.702f, 0.f}, {0.5f, 0.f}}}},
      {Op::kGelu,
       {[](D x, D, D p, D) {
          if (p == 0) return x * 0.5 * std::erfc(-x / std::sqrt(2.));
          return x * 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * std::pow(x, 3))));
        },
        12,
        size,
        {{0.f, 0.f}, {1.f, 0.f}}}},
      {Op::kSoftplus, of(softplus, 10)},
      {Op::kSoftsign, of([](D x) { return x / (1 + std::fabs(x)); }, 3)},
      {Op::kMish, of([](D x) { return x * std::tanh(softplus(x)); }, 20)},
      {Op::kElu,
       {[](D x, D, D p, D) { return x > 0 ? x : p * std::expm1(x); }, 7, size, {{1.f, 0.f}, {1.5f, 0.f}}}},
      {Op::kSelu,
       {[](D x, D, D p, D q) { return q * (x > 0 ? x : p * std::expm1(x)); },
        8,
        size,
        {{1.6732632f, 1.050701f}}}},
      {Op::kCelu,
       {[](D x, D, D p, D) { return x > 0 ? x : p * std::expm1(x / p); },
        9,
        size,
        {{1.f, 0.f}, {1.5f, 0.f}}}},
      {Op::kLeakyRelu, {[](D x, D, D p, D) { return x < 0 ? p * x : x; }, 1, size, {{0.01f, 0.f}}}},
      {Op::kThresholdedRelu, {[](D x, D, D p, D) { return x > p ? x : 0; }, 0, size, {{1.f, 0.f}}}},
      {Op::kHardSigmoid,
       {[](D x, D, D p, D q) { return std::isnan(x) ? x : std::clamp(p * x + q, 0., 1.); },
        4,
        one,
        {{0.2f, 0.5f}}}},
      {Op::kHardSwish,
       of([](D x) { return std::isnan(x) ? x : x * std::clamp(x / 6 + 0.5, 0., 1.); }, 4, size)},
      {Op::kScaledTanh,
       {[](D x, D, D p, D q) { return p * std::tanh(q * x); }, 9, one, {{0.5f, 2.f}, {1.7f, 0.3f}}}},
      {Op::kClip,
       {[](D x, D, D p, D q) { return std::isnan(x) ? x : std::clamp(x, p, q); },
        0,
        size,
        {{-1.5f, 2.f}, {-kInf, 5.f}}}},
      {Op::kAdd, {[](D a, D b, D, D) { return a + b; }}},
      {Op::kSub, {[](D a, D b, D, D) { return a - b; }}},
      {Op::kMul, {[](D a, D b, D, D) { return a * b; }}},
      {Op::kDiv, {[](D a, D b, D, D) { return a / b; }}},
      {Op::kPow, {[](D a, D b, D, D) { return std::pow(a, b); }, 4}},
      {Op::kMin, {[](D a, D b, D, D) { return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b); }, 0}},
      {Op::kMax, {[](D a, D b, D, D) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); }, 0}},
      {Op::kPRelu, {[](D x, D slope, D, D) { return x < 0 ? x * slope : x; }}},
      {Op::kMod,
       {[](D a, D b, D truncated, D) {
          const D r = std::fmod(a, b);  // exact
          return truncated != 0 || !(std::fabs(r) > 0) || std::signbit(r) == std::signbit(b) ? r : r + b;
        },
        1,
        size,
        {{0.f, 0.f}, {1.f, 0.f}}}},
  };
  return all;
}

struct Path {
  std::string name;
  std::function<std::vector<float>(const std::vector<float>&, const std::vector<float>&, float, float)> run;
};

Attributes attributes_of(const pointwise::Row& row, float p, float q) {
  Attributes attributes;
  const auto set = [&](const pointwise::Parameter& to, float value) {
    if (!to.name) return;
    if (to.type == pointwise::ParameterType::kReal) attributes.set(Key<double>{to.name}, value);
    if (to.type == pointwise::ParameterType::kInt)
      attributes.set(Key<int64_t>{to.name}, static_cast<int64_t>(value));
    if (to.type == pointwise::ParameterType::kText)
      attributes.set(Key<std::string>{to.name}, value != 0 ? to.word : "none");
  };
  set(row.p, p);
  set(row.q, q);
  return attributes;
}

TensorView view(const std::vector<float>& v, bool is_scalar = false) {
  TensorView view;
  view.data = reinterpret_cast<std::byte*>(const_cast<float*>(v.data()));
  view.dtype = DType::kF32;
  view.rank = is_scalar ? 0 : 1;
  if (!is_scalar) view.dims[0] = static_cast<int64_t>(v.size());
  return view;
}

std::vector<float> by_plain_kernel(const pointwise::Row& row, const std::vector<float>& a,
                                   const std::vector<float>& b, float p, float q) {
  const Attributes attributes = attributes_of(row, p, q);
  std::vector<float> out(a.size());
  const std::vector<float> low{p}, high{q};
  std::vector<TensorView> inputs{view(a)};
  if (row.arity == 2) inputs.push_back(view(b));
  if (row.op == Op::kClip) inputs.push_back(view(low, true)), inputs.push_back(view(high, true));
  const std::vector<TensorView> outputs{view(out)};
  const KernelCall call{row.op, &attributes, inputs, outputs};
  const Kernel* kernel = find_kernel(row.op);
  for (int64_t tile = 0; tile < kernel->grid(call); ++tile) kernel->tile(call, tile);
  return out;
}

// Every path, one function over whole vectors (a multiple of sixteen elements).
std::vector<Path> paths(const pointwise::Row& row) {
  std::vector<Path> all;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    all.push_back(
        {simd::table_of(isa).name, [isa, op = row.op](const auto& a, const auto& b, float p, float q) {
           std::vector<float> out(a.size());
           simd::table_of(isa).pointwise(op, a.data(), b.data(), p, q, out.data(),
                                         static_cast<int64_t>(a.size()));
           return out;
         }});
  }
  all.push_back({"plain kernel", [&row](const auto& a, const auto& b, float p, float q) {
                   return by_plain_kernel(row, a, b, p, q);
                 }});
  const auto each = [&row](auto function) {
    return [&row, function](const auto& a, const auto& b, float p, float q) {
      std::vector<float> out(a.size());
      pointwise::visit(row.op, [&](auto op) {
        if constexpr (pointwise::is_fusible(decltype(op)::row))
          for (std::size_t i = 0; i < a.size(); ++i) out[i] = function(op, a[i], b[i], p, q);
      });
      return out;
    };
  };
  all.push_back({"double", each([](auto op, float a, float b, float p, float q) {
                   return static_cast<float>(pointwise::compute<decltype(op), double>(a, b, p, q));
                 })});
  all.push_back({"device", each([](auto op, float a, float b, float p, float q) {
                   return pointwise::apply<decltype(op), cuda::Number>(a, b, p, q).v;
                 })});
  return all;
}

bool fits(float got, double exact, double tolerance) {
  if (std::isnan(exact)) return std::isnan(got);
  if (std::isinf(static_cast<float>(exact))) return got == static_cast<float>(exact);
  return std::fabs(got - exact) <= tolerance;
}

TEST(Pointwise, EveryPathComputesEveryOperatorSpecialValuesIncluded) {
  for (const pointwise::Row& row : pointwise::rows()) {
    if (!pointwise::is_fusible(row)) continue;
    ASSERT_TRUE(oracles().contains(row.op)) << row.name << " has no oracle";
    const Oracle& oracle = oracles().at(row.op);
    std::vector<float> a, b;
    for (const float x : values()) {
      for (const float y : row.arity == 2 ? values() : std::vector<float>{0.f})
        a.push_back(x), b.push_back(y);
    }
    while (a.size() % 16 != 0) a.push_back(1), b.push_back(1);
    for (const auto& [p, q] : oracle.parameters) {
      std::vector<float> first;
      for (const Path& path : paths(row)) {
        const std::vector<float> got = path.run(a, b, p, q);
        // Vectors: the same bits on every instruction set, but for the payload of NaN.
        const bool is_table = path.name != "plain kernel" && path.name != "double" && path.name != "device";
        if (first.empty()) first = got;
        for (std::size_t i = 0; i < a.size(); ++i) {
          if (is_table) {
            EXPECT_TRUE(std::memcmp(&got[i], &first[i], 4) == 0 ||
                        (std::isnan(got[i]) && std::isnan(first[i])))
                << row.name << " of " << a[i] << ", " << b[i] << " by " << path.name;
          }
          const double exact = oracle.exact(a[i], b[i], p, q);
          // Results below the normal numbers: the roundings of a few operations there; sigmoids flush to 0.
          const double least = 0x1p-146 + (oracle.units > 7 ? std::max(1.f, std::fabs(a[i])) * 0x1p-126 : 0);
          const double tolerance =
              oracle.units * 0x1p-24 * std::max(std::fabs(exact), oracle.floor(a[i])) + least;
          EXPECT_TRUE(fits(got[i], exact, tolerance))
              << row.name << " of " << a[i] << ", " << b[i] << " with " << p << ", " << q << " by "
              << path.name << ": " << got[i] << ", exactly " << exact;
        }
      }
    }
  }
}

TEST(Pointwise, IntegersWrapAndDivideByZero) {
  const auto of = [](Op op, int64_t a, int64_t b, double p = 0) {
    int64_t result = 0;
    pointwise::visit(op, [&](auto o) {
      if constexpr (pointwise::kComputes<decltype(o), int64_t>)
        result = pointwise::compute<decltype(o), int64_t>(a, b, p, 0);
    });
    return result;
  };
  const int64_t most = INT64_MAX, least = INT64_MIN;
  EXPECT_EQ(of(Op::kAdd, most, 1), least);
  EXPECT_EQ(of(Op::kNeg, least, 0), least);
  EXPECT_EQ(of(Op::kAbs, -5, 0), 5);
  EXPECT_EQ(of(Op::kMul, least, -1), least);
  EXPECT_EQ(of(Op::kDiv, least, -1), least);
  EXPECT_EQ(of(Op::kDiv, -7, 2), -3);
  EXPECT_EQ(of(Op::kDiv, 7, 0), 0);
  EXPECT_EQ(of(Op::kMod, 7, 0), 0);
  EXPECT_EQ(of(Op::kMod, least, -1), 0);
  EXPECT_EQ(of(Op::kMod, -7, 3), 2);
  EXPECT_EQ(of(Op::kMod, 7, -3), -2);
  EXPECT_EQ(of(Op::kMod, -7, 3, 1), -1);
  EXPECT_EQ(of(Op::kPow, 3, 4), 81);
  EXPECT_EQ(of(Op::kPow, -1, -3), -1);
  EXPECT_EQ(of(Op::kPow, 2, -1), 0);
  EXPECT_EQ(of(Op::kMax, -3, 2), 2);
  EXPECT_EQ(of(Op::kFloor, most, 0), most) << "not by way of double";
  EXPECT_EQ(of(Op::kBitShift, 1, 3, 1), 8);
  EXPECT_EQ(of(Op::kBitShift, -8, 1), -4);
  EXPECT_EQ(of(Op::kBitShift, 1, 64, 1), 0);
  EXPECT_EQ(of(Op::kBitNot, 0, 0), -1);
  EXPECT_EQ(of(Op::kExp, 0, 0), 1) << "by way of double";
}

TEST(Pointwise, NaNComparesAsIEEESays) {
  const auto of = [](Op op, float a, float b = 0, double p = 0, double q = 0) {
    float result = -1;
    pointwise::visit(op, [&](auto o) {
      if constexpr (pointwise::kComputes<decltype(o), float>)
        result = pointwise::compute<decltype(o), float>(a, b, p, q);
    });
    return result;
  };
  for (const Op op : {Op::kEqual, Op::kLess, Op::kLessOrEqual, Op::kGreater, Op::kGreaterOrEqual})
    EXPECT_EQ(of(op, NAN, NAN), 0) << name_of(op);
  EXPECT_EQ(of(Op::kLessOrEqual, 1, 1), 1);
  EXPECT_EQ(of(Op::kIsNaN, NAN), 1);
  EXPECT_EQ(of(Op::kIsNaN, kInf), 0);
  for (const bool negative : {false, true}) {
    for (const bool positive : {false, true}) {
      EXPECT_EQ(of(Op::kIsInf, -kInf, 0, negative, positive), negative);
      EXPECT_EQ(of(Op::kIsInf, kInf, 0, negative, positive), positive);
      EXPECT_EQ(of(Op::kIsInf, NAN, 0, negative, positive), 0);
      EXPECT_EQ(of(Op::kIsInf, 3e38f, 0, negative, positive), 0);
    }
  }
  EXPECT_EQ(of(Op::kAnd, 1, 2), 1);
  EXPECT_EQ(of(Op::kXor, 1, 2), 0);
  EXPECT_EQ(of(Op::kNot, 0), 1);
}

}  // namespace
}  // namespace ark::test
