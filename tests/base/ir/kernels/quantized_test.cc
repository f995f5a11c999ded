// Kernels of quantized operators refuse operands whose sizes do not fit: when they are asked for shapes, and
// again in every tile, as the static driver asks for none. Each view lies in a buffer of exactly its size, so
// that the sanitizers see what is read beyond it.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/ir/kernel.h"
#include "base/ir/keys.h"

namespace ark {
namespace {

struct Operands {
  Op op;
  Attributes attributes;
  std::vector<Tensor> inputs;
  Tensor output;
};

// "" if both the shapes and the first tile are computed; what is said if both refuse.
std::string refusal(const Operands& o) {
  std::vector<TensorView> in, out{view_of(o.output)};
  for (const Tensor& t : o.inputs) in.push_back(t.dtype == DType::kUndefined ? TensorView{} : view_of(t));
  const KernelCall call{o.op, &o.attributes, in, out};
  const Kernel& kernel = *find_kernel(o.op);
  const auto said = [&](auto&& run) -> std::string {
    try {
      run();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kInvalidArgument);
      return e.what();
    }
    return "";
  };
  const std::string tile = said([&] { kernel.tile(call, 0); }), shapes = said([&] { kernel.shapes(call); });
  EXPECT_EQ(tile, shapes);
  return tile;
}

Tensor zeros(DType type, Dims dims) { return Tensor::zeros(type, std::move(dims)); }

Operands linear(Op op, Dims scales, Dims zero, int64_t axis = 1, int64_t block = 0) {
  const bool quantize = op == Op::kQuantizeLinear;
  return {op,
          {{key::kAxis, axis}, {key::kBlockSize, block}},
          {zeros(quantize ? DType::kF32 : DType::kI8, {40, 6}),
           Tensor::of<float>(DType::kF32, scales,
                             std::vector<float>(static_cast<std::size_t>(element_count(scales)), 1)),
           zeros(DType::kI8, std::move(zero))},
          zeros(quantize ? DType::kI8 : DType::kF32, {40, 6})};
}

TEST(QuantizedKernels, ScalesAndZeroPointsAreEquallyMany) {
  for (const Op op : {Op::kQuantizeLinear, Op::kDequantizeLinear}) {
    EXPECT_EQ(refusal(linear(op, {}, {1})), "");
    EXPECT_EQ(refusal(linear(op, {6}, {6})), "");
    EXPECT_EQ(refusal(linear(op, {3, 6}, {3, 6}, 0, 16)), "");
    EXPECT_EQ(refusal(linear(op, {6}, {1})), "zero points [1] and scales [6] must be equally many");
    EXPECT_EQ(refusal(linear(op, {3, 6}, {1, 6}, 0, 16)),
              "zero points [1,6] and scales [3,6] must be equally many");
    EXPECT_EQ(refusal(linear(op, {2, 6}, {2, 6}, 0, 16)), "scales [2,6] do not fit [40,6]");
    EXPECT_EQ(refusal(linear(op, {6}, {6}, 0)), "scales [6] do not fit [40,6]");
    EXPECT_EQ(refusal(linear(op, {3, 6}, {3, 6}, 0, -16)), "scales [3,6] do not fit [40,6]");
    EXPECT_EQ(refusal(linear(op, {3, 6}, {3, 6}, 0, int64_t{1} << 62)), "scales [3,6] do not fit [40,6]");
  }
}

TEST(QuantizedKernels, IntegerProductsHaveOneZeroPointOrOneEach) {
  const auto product = [](Dims a_zero, Dims b_zero) {
    return Operands{Op::kMatMulInteger,
                    {},
                    {zeros(DType::kU8, {4, 5}), zeros(DType::kU8, {5, 6}),
                     zeros(DType::kU8, std::move(a_zero)), zeros(DType::kU8, std::move(b_zero))},
                    zeros(DType::kI32, {4, 6})};
  };
  EXPECT_EQ(refusal(product({4}, {6})), "");
  EXPECT_EQ(refusal(product({}, {1})), "");
  EXPECT_EQ(refusal(product({2}, {6})), "MatMulInteger: 2 zero points for 4 rows");
  EXPECT_EQ(refusal(product({4}, {5})), "MatMulInteger: 5 zero points for 6 columns");
}

Operands nbits(Dims codes, Dims scales, Dims zero, Dims places, int32_t place = 0) {
  const auto count = static_cast<std::size_t>(element_count(places));
  return {Op::kMatMulNBits,
          {{key::kK, 40}, {key::kN, 3}, {key::kBits, 4}, {key::kBlockSize, 16}},
          {zeros(DType::kF32, {2, 40}), zeros(DType::kU8, std::move(codes)),
           zeros(DType::kF32, std::move(scales)), zeros(DType::kU8, std::move(zero)),
           Tensor::of<int32_t>(DType::kI32, places, std::vector<int32_t>(count, place))},
          zeros(DType::kF32, {2, 3})};
}

TEST(QuantizedKernels, OperandsOfNBitsFit) {
  EXPECT_EQ(refusal(nbits({3, 3, 8}, {9}, {3, 2}, {40}, 2)), "");
  EXPECT_NE(refusal(nbits({1, 3, 8}, {9}, {3, 2}, {40})), "");
  EXPECT_NE(refusal(nbits({3, 3, 8}, {3}, {3, 2}, {40})), "");
  EXPECT_NE(refusal(nbits({3, 3, 8}, {9}, {3, 1}, {40})), "");
  EXPECT_NE(refusal(nbits({3, 3, 8}, {9}, {3, 2}, {1})), "");
}

// Only a tile reads them.
TEST(QuantizedKernels, BlocksNamedByGIdxExist) {
  for (const int32_t place : {3, -1, 100'000'000, -100'000'000}) {
    const Operands o = nbits({3, 3, 8}, {9}, {3, 2}, {40}, place);
    std::vector<TensorView> in, out{view_of(o.output)};
    for (const Tensor& t : o.inputs) in.push_back(view_of(t));
    const KernelCall call{o.op, &o.attributes, in, out};
    EXPECT_THROW(find_kernel(o.op)->tile(call, 0), Error) << place;
  }
}

TEST(QuantizedKernels, ConvolutionsOfIntegersHaveOneZeroPointOrOneAChannel) {
  const auto conv = [](Dims x_zero, Dims w_zero) {
    return Operands{Op::kConvInteger,
                    {{key::kStrides, std::vector<int64_t>{1}},
                     {key::kDilations, std::vector<int64_t>{1}},
                     {key::kPads, std::vector<int64_t>{0, 0}},
                     {key::kGroup, 1}},
                    {zeros(DType::kU8, {1, 2, 8}), zeros(DType::kU8, {3, 2, 3}),
                     zeros(DType::kU8, std::move(x_zero)), zeros(DType::kU8, std::move(w_zero))},
                    zeros(DType::kI32, {1, 3, 6})};
  };
  EXPECT_EQ(refusal(conv({}, {3})), "");
  EXPECT_NE(refusal(conv({2}, {3})), "");
  EXPECT_NE(refusal(conv({}, {2})), "");
}

}  // namespace
}  // namespace ark
