// Kernels that constant folding does not run refuse operands that do not fit, when they are asked for shapes and
// again in a tile: programs compiled for maximal sizes ask for none.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/ir/kernel.h"
#include "base/ir/keys.h"

namespace ark {
namespace {

bool refuses(Op op, const Attributes& attributes, const std::vector<Tensor>& inputs, const Tensor& output) {
  std::vector<TensorView> in, out{view_of(output)};
  for (const Tensor& t : inputs) in.push_back(t.dtype == DType::kUndefined ? TensorView{} : view_of(t));
  const KernelCall call{op, &attributes, in, out};
  const auto throws = [](auto&& run) {
    try {
      run();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      return true;
    }
    return false;
  };
  const Kernel& kernel = *find_kernel(op);
  const bool shapes = throws([&] { kernel.shapes(call); }), tile = throws([&] { kernel.tile(call, 0); });
  EXPECT_EQ(shapes, tile);
  return tile;
}

Tensor reals(Dims dims) { return Tensor::zeros(DType::kF32, std::move(dims)); }
Tensor positions(Dims dims) { return Tensor::zeros(DType::kI64, std::move(dims)); }

TEST(Operands, RotaryTablesAreOneSize) {
  const auto rotary = [](Dims cos, Dims sin, Dims where) {
    return refuses(
        Op::kRotary, {{key::kRotaryDim, 8}, {key::kHeadAxis, 1}},
        {reals({3, 2, 16}), reals(std::move(cos)), reals(std::move(sin)), positions(std::move(where))},
        reals({3, 2, 16}));
  };
  EXPECT_FALSE(rotary({128, 4}, {128, 4}, {3}));
  EXPECT_FALSE(rotary({128, 4}, {128, 4}, {1}));
  EXPECT_TRUE(rotary({128, 4}, {0, 4}, {3}));
  EXPECT_TRUE(rotary({128, 4}, {64, 4}, {3}));
  EXPECT_TRUE(rotary({128, 3}, {128, 3}, {3}));
  EXPECT_TRUE(rotary({0, 4}, {0, 4}, {3}));
  EXPECT_TRUE(rotary({128, 4}, {128, 4}, {2}));
}

TEST(Operands, TopKTakesNoMoreThanThereIs) {
  const auto top = [](std::vector<int64_t> k) {
    return refuses(Op::kTopK, {{key::kAxis, 0}},
                   {reals({4}), Tensor::of<int64_t>(DType::kI64, {static_cast<int64_t>(k.size())}, k)},
                   reals({4}));
  };
  EXPECT_FALSE(top({4}));  // with its first output alone
  EXPECT_TRUE(top({5}));
  EXPECT_TRUE(top({-1}));
  EXPECT_TRUE(top({}));
  EXPECT_TRUE(top({1, 1}));
}

TEST(Operands, AttentionsBiasAndLengthsFitTheScores) {
  const auto attention = [](Dims bias, Dims lengths) {
    std::vector<Tensor> in{reals({2, 2, 3, 4}),
                           reals({2, 1, 5, 4}),
                           reals({2, 1, 5, 4}),
                           reals(std::move(bias)),
                           {},
                           {},
                           positions(std::move(lengths))};
    return refuses(Op::kAttention, {}, in, reals({2, 2, 3, 4}));
  };
  EXPECT_FALSE(attention({3, 5}, {2}));
  EXPECT_FALSE(attention({2, 1, 1, 5}, {2}));
  EXPECT_TRUE(attention({3, 4}, {2}));
  EXPECT_TRUE(attention({3, 2, 3, 5}, {2}));
  EXPECT_TRUE(attention({3, 5}, {1}));
}

TEST(Operands, NormsHaveAScaleForEachPlace) {
  EXPECT_FALSE(refuses(Op::kLayerNorm, {{key::kAxis, 1}}, {reals({2, 4}), reals({4})}, reals({2, 4})));
  EXPECT_FALSE(refuses(Op::kLayerNorm, {{key::kAxis, 1}}, {reals({2, 4}), reals({1})}, reals({2, 4})));
  EXPECT_TRUE(refuses(Op::kLayerNorm, {{key::kAxis, 1}}, {reals({2, 4}), reals({2})}, reals({2, 4})));
  EXPECT_TRUE(refuses(Op::kBatchNorm, {}, {reals({2, 4}), reals({4}), reals({4}), reals({2}), reals({4})},
                      reals({2, 4})));
}

}  // namespace
}  // namespace ark
