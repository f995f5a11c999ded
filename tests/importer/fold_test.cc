#include "importer/fold.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/ir/kernel.h"
#include "base/ir/keys.h"
#include "tests/importer/graph_builder.h"

namespace ark {
namespace {

using test::GraphBuilder;

// The constant that emit() folded to, as numbers.
std::vector<double> folded(const GraphBuilder& g, ValueId id) {
  const ConstantPtr& c = g.graph.value(id).constant;
  if (!c) return {-12345};
  const Tensor t = materialise(*c);
  std::vector<double> numbers;
  for (int64_t i = 0; i < t.size(); ++i) numbers.push_back(t.real(i));
  return numbers;
}
using Numbers = std::vector<double>;

TEST(Fold, Pointwise) {
  GraphBuilder g;
  const ValueId a = g.reals({2, 1}, {1, 4}), b = g.reals({2}, {2, 3});
  EXPECT_EQ(folded(g, g.emit(Op::kAdd, {a, b})), (Numbers{3, 4, 6, 7}));
  EXPECT_EQ(folded(g, g.emit(Op::kPow, {a, b})), (Numbers{1, 1, 16, 64}));
  EXPECT_EQ(folded(g, g.emit(Op::kSqrt, {a})), (Numbers{1, 2}));
  EXPECT_EQ(folded(g, g.emit(Op::kGreater, {a, b})), (Numbers{0, 0, 1, 1}));
  EXPECT_EQ(folded(g, g.emit(Op::kClip, {a, g.real(2), kNoValue})), (Numbers{2, 4}));
}

TEST(Fold, IntegersTruncateAndWrap) {
  GraphBuilder g;
  const auto two = [&](Op op, int64_t a, int64_t b, Attributes at = {}) {
    return folded(g, g.emit(op, {g.ints({1, 1}, {a}), g.ints({1, 1}, {b})}, std::move(at)))[0];
  };
  EXPECT_EQ(two(Op::kDiv, -7, 2), -3);
  EXPECT_EQ(two(Op::kMod, -7, 3), 2);
  EXPECT_EQ(two(Op::kMod, -7, 3, {{key::kFmod, 1}}), -1);
  EXPECT_EQ(two(Op::kDiv, 1, 0), -12345);  // left to run time
}

// (x - zero) * scale, in f32, then in the output's type; matrices stay as they are stored.
TEST(Fold, DequantizesVectors) {
  GraphBuilder g;
  const auto bytes = [&](Dims dims, const std::vector<int8_t>& values) {
    return g.graph.add_constant(make_constant(Tensor::of<int8_t>(DType::kI8, dims, values)));
  };
  const auto made = [&](std::vector<ValueId> in, int64_t axis, int64_t block) {
    return folded(
        g, g.emit(Op::kDequantizeLinear, std::move(in), {{key::kAxis, axis}, {key::kBlockSize, block}}));
  };
  const ValueId x = bytes({4}, {-128, 0, 3, 127});
  EXPECT_EQ(made({x, g.real(0.5f)}, 0, 0), (Numbers{-64, 0, 1.5, 63.5}));
  EXPECT_EQ(made({x, g.real(0.5f), bytes({}, {-1})}, 0, 0), (Numbers{-63.5, 0.5, 2, 64}));
  EXPECT_EQ(made({x, g.reals({4}, {1, 2, 3, 4}), bytes({4}, {1, 2, 3, 4})}, 0, 0),
            (Numbers{-129, -4, 0, 492}));
  EXPECT_EQ(made({x, g.reals({2}, {1, 2})}, 0, 2), (Numbers{-128, 0, 6, 254}));
  EXPECT_EQ(made({bytes({1, 3}, {1, 2, 3}), g.reals({3}, {1, 2, 3})}, 1, 0), (Numbers{1, 4, 9}));
  EXPECT_EQ(made({bytes({2, 2}, {1, 2, 3, 4}), g.real(1)}, 0, 0), (Numbers{-12345}));
  const ValueId wide = g.graph.add_constant(
      make_constant(Tensor::of<int32_t>(DType::kI32, {1}, std::vector<int32_t>{16777217})));
  EXPECT_EQ(made({wide, g.real(1)}, 0, 0), (Numbers{16777216}));  // what f32 holds of it
}

// Each coordinate reads points of the image, or none.
TEST(Kernels, GridSampleTakesAnyCoordinate) {
  constexpr float kEndless = INFINITY;
  const Tensor image = Tensor::of<float>(DType::kF32, {1, 1, 2, 2}, std::vector<float>{1, 2, 3, 4});
  const Tensor grid = Tensor::of<float>(
      DType::kF32, {1, 1, 4, 2}, std::vector<float>{kEndless, -kEndless, 3e38f, -1e30f, NAN, 0, 0, kEndless});
  const Kernel& kernel = *find_kernel(Op::kGridSample);
  for (const std::string mode : {"nearest", "linear", "cubic"}) {
    for (const std::string padding : {"zeros", "border", "reflection"}) {
      for (const int64_t align : {0, 1}) {
        const Attributes attributes{
            {key::kMode, mode}, {key::kPaddingMode, padding}, {key::kAlignCorners, align}};
        Tensor y = Tensor::zeros(DType::kF32, {1, 1, 1, 4});
        const TensorView in[] = {view_of(image), view_of(grid)}, out = view_of(y);
        const KernelCall call{Op::kGridSample, &attributes, in, {&out, 1}};
        for (int64_t tile = 0; tile < kernel.grid(call); ++tile) kernel.tile(call, tile);
        for (int64_t i = 0; i < 4 && mode == "nearest"; ++i)
          EXPECT_TRUE(y.real(i) >= 0 && y.real(i) <= 4) << padding << " " << align << " " << y.real(i);
      }
    }
  }
}

TEST(Fold, CastRoundsToTheTargetsPrecision) {
  GraphBuilder g;
  const ValueId half = g.emit(Op::kCast, {g.real(0.1f)}, {{key::kTo, 10}});
  EXPECT_EQ(folded(g, half)[0], f16_to_f32(f32_to_f16(0.1f)));
  EXPECT_EQ(folded(g, g.emit(Op::kCast, {g.real(-2.7f)}, {{key::kTo, 7}}))[0], -2);
  EXPECT_EQ(folded(g, g.emit(Op::kCast, {g.real(NAN)}, {{key::kTo, 7}}))[0], -12345);
}

TEST(Fold, Movement) {
  GraphBuilder g;
  const ValueId x = g.reals({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(folded(g, g.emit(Op::kTranspose, {x}, {{key::kPerm, std::vector<int64_t>{1, 0}}})),
            (Numbers{1, 4, 2, 5, 3, 6}));
  const Attributes backwards{{key::kAxes, std::vector<int64_t>{1}},
                             {key::kStarts, Shape{2}},
                             {key::kEnds, Shape{-1}},
                             {key::kSteps, std::vector<int64_t>{-1}}};
  EXPECT_EQ(folded(g, g.emit(Op::kSlice, {x}, backwards)), (Numbers{3, 2, 1, 6, 5, 4}));
  EXPECT_EQ(folded(g, g.emit(Op::kConcat, {x, x}, {{key::kAxis, 1}})),
            (Numbers{1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6}));
  EXPECT_EQ(folded(g, g.emit(Op::kPad, {x}, {{key::kPadding, Shape{0, 1, 0, 0}}})),
            (Numbers{0, 1, 2, 3, 0, 4, 5, 6}));
  EXPECT_EQ(folded(g, g.emit(Op::kTrilu, {x}, {{key::kUpper, 0}, {key::kDiagonal, 0}})),
            (Numbers{1, 0, 0, 4, 5, 0}));
}

TEST(Fold, Indexing) {
  GraphBuilder g;
  const ValueId x = g.reals({3, 2}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(folded(g, g.emit(Op::kGather, {x, g.ints({-1, 0})}, {{key::kAxis, 0}})), (Numbers{5, 6, 1, 2}));
  EXPECT_EQ(folded(g, g.emit(Op::kGatherND, {x, g.ints({1, 2}, {2, 1})})), (Numbers{6}));
  EXPECT_EQ(folded(g, g.emit(Op::kScatterND, {x, g.ints({1, 1}, {1}), g.reals({1, 2}, {8, 9})})),
            (Numbers{1, 2, 8, 9, 5, 6}));
  EXPECT_EQ(folded(g, g.emit(Op::kNonZero, {g.reals({2, 2}, {0, 1, 1, 0})})), (Numbers{0, 1, 1, 0}));
  EXPECT_THROW(g.emit(Op::kGather, {x, g.ints({3})}, {{key::kAxis, 0}}), Error);
}

TEST(Fold, Reductions) {
  GraphBuilder g;
  const ValueId x = g.reals({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(
      folded(g, g.emit(Op::kReduceMean, {x}, {{key::kAxes, std::vector<int64_t>{1}}, {key::kKeepdims, 0}})),
      (Numbers{2, 5}));
  EXPECT_EQ(folded(g, g.emit(Op::kReduceMax, {x}, {{key::kKeepdims, 1}})), (Numbers{6}));
  EXPECT_EQ(folded(g, g.emit(Op::kCumSum, {x}, {{key::kAxis, 1}, {key::kExclusive, 1}, {key::kReverse, 1}})),
            (Numbers{5, 3, 0, 11, 6, 0}));
}

std::vector<int64_t> integers(const GraphBuilder& g, ValueId id) {
  const ConstantPtr& c = g.graph.value(id).constant;
  if (!c) return {};
  const Tensor t = materialise(*c);
  return {t.as<int64_t>(), t.as<int64_t>() + t.size()};
}

// 2^53 + 1 is the first integer that a double does not hold.
TEST(Fold, IntegersStayExactBeyondDoubles) {
  using Integers = std::vector<int64_t>;
  constexpr int64_t kOdd = (int64_t{1} << 53) + 1;
  constexpr int64_t kMost = INT64_MAX, kLeast = INT64_MIN;
  GraphBuilder g;
  EXPECT_EQ(integers(g, g.emit(Op::kAdd, {g.ints({1, 1}, {kMost}), g.ints({1, 1}, {1})})), Integers{kLeast});
  EXPECT_EQ(integers(g, g.emit(Op::kDiv, {g.ints({1, 1}, {kLeast}), g.ints({1, 1}, {-1})})),
            Integers{kLeast});
  EXPECT_EQ(integers(g, g.emit(Op::kRange, {g.integer(kOdd), g.integer(kOdd + 6), g.integer(3)})),
            (Integers{kOdd, kOdd + 3}));
  EXPECT_EQ(integers(g, g.emit(Op::kReduceSum, {g.ints({1, 2}, {kOdd, 2})})), Integers{kOdd + 2});
  EXPECT_EQ(integers(g, g.emit(Op::kReduceMax, {g.ints({1, 2}, {kOdd, kOdd - 1})})), Integers{kOdd});
  EXPECT_EQ(integers(g, g.emit(Op::kCumSum, {g.ints({1, 2}, {kOdd, 1})}, {{key::kAxis, 1}})),
            (Integers{kOdd, kOdd + 1}));
}

// Kernels run on what strangers' files hold: operands that do not fit are refused, not read.
TEST(Fold, OperandsThatDoNotFitAreRefused) {
  GraphBuilder g;
  const ValueId none = g.ints(Dims{0}, {}), x = g.reals({2, 2}, {1, 2, 3, 4}), one = g.real(1);
  const ValueId wide = g.ints({2, 2}, {1, 2, 3, 4});
  const auto refuses = [](Op op, const std::vector<Tensor>& in, Attributes attributes = {}) {
    Node node;
    node.op = op;
    node.name = "here";
    node.attributes = std::move(attributes);
    try {
      evaluate(node, in, {DType::kUndefined});
    } catch (const Error& error) {
      EXPECT_TRUE(std::string_view(error.what()).starts_with("node here: ")) << error.what();
      return error.code() == Code::kBadModel;
    }
    return false;
  };
  const auto t = [&](ValueId id) { return materialise(*g.graph.value(id).constant); };
  EXPECT_TRUE(refuses(Op::kRange, {t(none), t(g.integer(1)), t(g.integer(1))}));
  EXPECT_TRUE(refuses(Op::kRange, {t(g.integer(0)), t(g.integer(INT64_MAX)), t(g.integer(1))}));
  EXPECT_TRUE(refuses(Op::kRange, {t(g.integer(0)), t(g.integer(5)), t(g.integer(0))}));
  EXPECT_TRUE(refuses(Op::kTrilu, {t(x), t(none)}));
  EXPECT_TRUE(refuses(Op::kTrilu, {t(one)}));
  EXPECT_TRUE(refuses(Op::kClip, {t(x), t(none)}));
  EXPECT_TRUE(refuses(Op::kCumSum, {t(x), t(none)}));
  EXPECT_TRUE(refuses(Op::kOneHot, {t(wide), t(none), t(x)}, {{key::kAxis, -1}}));
  EXPECT_TRUE(refuses(Op::kOneHot, {t(wide), t(g.integer(2)), t(one)}, {{key::kAxis, -1}}));
  EXPECT_TRUE(refuses(Op::kConcat, {t(one), t(one)}, {{key::kAxis, 0}}));
  EXPECT_TRUE(refuses(Op::kConcat, {t(x), t(wide)}, {{key::kAxis, 0}}));
  EXPECT_TRUE(refuses(Op::kGather, {t(one), t(g.integer(0))}, {{key::kAxis, 0}}));
  EXPECT_TRUE(refuses(Op::kGatherND, {t(x), t(wide)}, {{key::kBatchDims, -1}}));
  EXPECT_TRUE(refuses(Op::kGatherND, {t(x), t(g.ints({3, 1}, {0, 0, 0}))}, {{key::kBatchDims, 1}}));
  EXPECT_TRUE(refuses(Op::kScatterND, {t(wide), t(g.ints({1, 1}, {1})), t(g.reals({1, 2}, {8, 9}))}));
  EXPECT_TRUE(refuses(Op::kPad, {t(x), t(g.ints({0, 0, 1, 1})), t(g.integer(0))}));
  EXPECT_TRUE(refuses(Op::kPad, {t(x), t(g.ints({INT64_MAX, 0, INT64_MAX, 1}))}));
  EXPECT_TRUE(refuses(Op::kTile, {t(x), t(g.ints({int64_t{1} << 62, 2}))}));
  EXPECT_TRUE(refuses(Op::kReshape, {t(x)}));
  EXPECT_TRUE(refuses(Op::kExpand, {t(x), t(g.ints({3, 2}))}));
  EXPECT_TRUE(refuses(Op::kMatMul, {t(x), t(g.reals({3, 2}, {1, 2, 3, 4, 5, 6}))}));
  EXPECT_TRUE(refuses(Op::kTranspose, {t(x)}, {{key::kPerm, std::vector<int64_t>{0, -1}}}));
}

// What is too large is left to run time; nothing of that size is made.
TEST(Fold, LargeResultsAreLeftAlone) {
  GraphBuilder g;
  const auto evaluated = [](Op op, const std::vector<Tensor>& in, Attributes attributes = {}) {
    Node node;
    node.op = op;
    node.attributes = std::move(attributes);
    return evaluate(node, in, {DType::kUndefined}).has_value();
  };
  const Tensor x = Tensor::zeros(DType::kF32, {1, 1}), tall = Tensor::zeros(DType::kF32, {5'000, 4}),
               broad = Tensor::zeros(DType::kF32, {4, 5'000});
  EXPECT_TRUE(evaluated(Op::kExpand, {x}, {{key::kShape, Shape{1'000, 1'000}}}));
  EXPECT_FALSE(evaluated(Op::kExpand, {x}, {{key::kShape, Shape{1'000'000, 1'000'000}}}));
  EXPECT_FALSE(evaluated(Op::kMatMul, {tall, broad}));  // 10^8 multiply-adds
  EXPECT_FALSE(evaluated(Op::kExpand, {x}, {{key::kShape, Shape{Expr::symbol("n"), 1}}}));
}

TEST(Fold, BudgetIsKept) {
  GraphBuilder g;
  g.graph.folding->remaining = 5;
  EXPECT_EQ(folded(g, g.emit(Op::kNeg, {g.reals({6}, {1, 2, 3, 4, 5, 6})})), Numbers{-12345});
  EXPECT_EQ(folded(g, g.emit(Op::kNeg, {g.real(1)})), Numbers{-1});
  EXPECT_EQ(g.graph.folding->remaining, 4);
}

}  // namespace
}  // namespace ark
