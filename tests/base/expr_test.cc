#include "base/expr.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "base/error.h"

namespace ark {
namespace {

const Expr a = Expr::symbol("a"), b = Expr::symbol("b"), s = Expr::symbol("seq.1");

TEST(Expr, EqualPolynomialsCompareEqual) {
  EXPECT_EQ((a + b) * (a - b), a * a - b * b);
  EXPECT_EQ(a + s - a, s);
  EXPECT_EQ(floordiv(a * 64 * b, b * 64), a);
  EXPECT_EQ(floordiv((a + b) * s, a + b), s);
  EXPECT_EQ(floordiv(a * 8 + 3, 4), a * 2);
  EXPECT_EQ(floordiv(a * b * s, a * 2 * s), floordiv(b, 2));
  EXPECT_EQ(floordiv(a * b + a, a * 2), floordiv(b + 1, 2));
  EXPECT_TRUE((a - a).is_constant(0));
}

TEST(Expr, BoundsUseThatSizesAreNotNegative) {
  EXPECT_EQ(min(a + s, std::numeric_limits<int64_t>::max() / 2).str().substr(0, 4), "min(");
  EXPECT_EQ(max(a + 1, 0), a + 1);
  EXPECT_EQ(min(a, a + b), a);
  EXPECT_EQ((a * b + 3).lower_bound(), 3);
  EXPECT_EQ((floordiv(a - 1, 2) + 1).lower_bound(), 0);
  EXPECT_EQ((Expr(5) - a).upper_bound(), 5);
  EXPECT_EQ(a.upper_bound(), std::nullopt);
}

// Random expressions: canonicalisation keeps the value, and printing parses back to the same form.
TEST(Expr, RandomExpressionsKeepTheirValueAndRoundTrip) {
  std::mt19937 random(1);
  const SymbolValues values{{"a", 3}, {"b", 7}, {"seq.1", 10}};
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::pair<Expr, int64_t>> pool{{a, 3}, {b, 7}, {s, 10}, {2, 2}, {-5, -5}};
    for (int i = 0; i < 6; ++i) {
      const auto [x, xv] = pool[random() % pool.size()];
      const auto [y, yv] = pool[random() % pool.size()];
      if (std::abs(xv) > 1000000 || std::abs(yv) > 1000000) continue;
      const auto floor_div = [](int64_t n, int64_t d) { return (n - ((n % d) + d) % d) / d; };
      switch (random() % (yv > 0 ? 7 : 5)) {
        case 0:
          pool.push_back({x + y, xv + yv});
          break;
        case 1:
          pool.push_back({x - y, xv - yv});
          break;
        case 2:
          pool.push_back({x * y, xv * yv});
          break;
        case 3:
          pool.push_back({min(x, y), std::min(xv, yv)});
          break;
        case 4:
          pool.push_back({max(x, y), std::max(xv, yv)});
          break;
        case 5:
          pool.push_back({floordiv(x, y), floor_div(xv, yv)});
          break;
        case 6:
          pool.push_back({mod(x, y), xv - yv * floor_div(xv, yv)});
          break;
      }
    }
    const auto& [e, value] = pool.back();
    ASSERT_EQ(e.evaluate(values), value) << e.str();
    ASSERT_EQ(Expr::parse(e.str()), e) << e.str();
    const Expr bound = e.substitute({{"a", 3}, {"b", 7}, {"seq.1", 10}});
    ASSERT_TRUE(bound.is_constant(value)) << e.str() << " -> " << bound.str();
    ASSERT_LE(e.lower_bound().value_or(value), value) << e.str();
    ASSERT_GE(e.upper_bound().value_or(value), value) << e.str();
  }
}

TEST(Expr, OverflowAndZeroDivisionAreErrors) {
  const Expr big = Expr(std::numeric_limits<int64_t>::max());
  EXPECT_THROW((void)(big + 1), Error);
  EXPECT_THROW((void)floordiv(1, 0), Error);
  EXPECT_THROW((void)(a * a).evaluate({{"a", int64_t{1} << 40}}), Error);
  EXPECT_THROW((void)Expr::parse("a + "), Error);
  EXPECT_THROW((void)Expr::parse(std::string(1000, '(')), Error);
}

}  // namespace
}  // namespace ark
