// Sizes and types of quantized operands that do not fit are errors of the file, said at import.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/importer/graph_builder.h"
#include "tests/importer/proto.h"

namespace ark {
namespace {

using test::attribute;
using test::GraphBuilder;
using testing::HasSubstr;

ValueId zeros(GraphBuilder& g, DType type, const Dims& dims) {
  return g.graph.add_constant(make_constant(Tensor::zeros(type, dims)));
}

// What importing says, "" if it says nothing.
template <typename F>
std::string refusal(F&& import) {
  try {
    import();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kBadModel);
    return e.what();
  }
  return "";
}

struct NBits {
  int64_t k = 40, n = 3, bits = 4, block = 16;
  Dims codes{3, 3, 8}, scales{3, 3}, zeros{3, 2}, places{};
  DType code_type = DType::kU8, zero_type = DType::kU8;
  int32_t place = 0;
};

std::string nbits(const NBits& c) {
  GraphBuilder g;
  std::vector<ValueId> in{g.input("x", "n, 40"), zeros(g, c.code_type, c.codes),
                          zeros(g, DType::kF32, c.scales), zeros(g, c.zero_type, c.zeros)};
  if (!c.places.empty())
    in.push_back(g.graph.add_constant(make_constant(Tensor::of<int32_t>(
        DType::kI32, c.places,
        std::vector<int32_t>(static_cast<std::size_t>(element_count(c.places)), c.place)))));
  return refusal([&] {
    g.onnx("MatMulNBits", in,
           {attribute("K", c.k), attribute("N", c.n), attribute("bits", c.bits),
            attribute("block_size", c.block)},
           21, 1, "com.microsoft");
  });
}

TEST(MatMulNBits, TakesOperandsOfItsSizes) {
  EXPECT_EQ(nbits({}), "");
  EXPECT_EQ(nbits({.codes = {72}, .scales = {9}, .zeros = {6}}), "");
  EXPECT_EQ(nbits({.zeros = {9}, .zero_type = DType::kF32}), "");
  EXPECT_EQ(nbits({.places = {40}, .place = 2}), "");
  EXPECT_EQ(nbits({.places = {48}, .place = 2}), "") << "g_idx of whole blocks";
  EXPECT_EQ(nbits({.bits = 8, .codes = {3, 3, 16}, .zeros = {3, 3}}), "");
}

TEST(MatMulNBits, OperandsOfOtherSizesAreErrors) {
  EXPECT_THAT(nbits({.codes = {1, 3, 8}}),
              HasSubstr("has 24 bytes of weights; N, K, bits and block_size ask for 3 * 3 * 8"));
  EXPECT_THAT(nbits({.scales = {1, 3}}), HasSubstr("has 3 scales"));
  EXPECT_THAT(nbits({.zeros = {3, 1}}), HasSubstr("has 3 bytes of zero points"));
  EXPECT_THAT(nbits({.zeros = {6}, .zero_type = DType::kF32}), HasSubstr("has 6 zero points"));
  EXPECT_THAT(nbits({.zeros = {9}, .zero_type = DType::kF16}), HasSubstr("zero points of type"));
  EXPECT_THAT(nbits({.code_type = DType::kI8}), HasSubstr("not uint8"));
  EXPECT_THAT(nbits({.places = {1}}), HasSubstr("has 1 elements of g_idx"));
  EXPECT_THAT(nbits({.places = {40}, .place = 3}), HasSubstr("g_idx names block 3 of 3"));
  EXPECT_THAT(nbits({.places = {40}, .place = -1}), HasSubstr("g_idx names block -1 of 3"));
  EXPECT_THAT(nbits({.n = int64_t{1} << 30}), HasSubstr("bytes of weights"));
  EXPECT_THAT(nbits({.n = int64_t{1} << 62}), HasSubstr("larger than 2^40"));
  EXPECT_THAT(nbits({.block = int64_t{1} << 62}), HasSubstr("larger than 2^40"));
  // 2^40 columns of 2^39 bytes a block: a product that no 64 bits hold.
  EXPECT_THAT(nbits({.n = int64_t{1} << 40, .block = int64_t{1} << 40}), HasSubstr("bytes of weights"));
}

TEST(MatMulNBits, WeightsThatWerePackedForAnotherProgramAreRefused) {
  GraphBuilder g;
  const std::vector<ValueId> in{g.input("x", "n, 40"), zeros(g, DType::kU8, {3, 3, 8}),
                                zeros(g, DType::kF32, {3, 3})};
  try {
    g.onnx("MatMulNBits", in,
           {attribute("K", 40), attribute("N", 3), attribute("bits", 4), attribute("block_size", 16),
            attribute("weight_prepacked", 1)},
           21, 1, "com.microsoft");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("weights that were packed for another program"));
  }
}

struct Linear {
  Dims scales, zeros;
  int64_t axis = 1, block = 0;
  DType zero_type = DType::kI8;
};
std::string linear(const char* op, const Linear& c) {
  GraphBuilder g;
  const bool quantize = std::string(op) == "QuantizeLinear";
  const ValueId x = quantize ? g.input("x", "40, 6") : zeros(g, DType::kI8, {40, 6});
  return refusal([&] {
    g.onnx(op, {x, zeros(g, DType::kF32, c.scales), zeros(g, c.zero_type, c.zeros)},
           {attribute("axis", c.axis), attribute("block_size", c.block)});
  });
}

TEST(QuantizeLinear, ScalesAndZeroPointsFitTheData) {
  for (const char* op : {"QuantizeLinear", "DequantizeLinear"}) {
    SCOPED_TRACE(op);
    EXPECT_EQ(linear(op, {{}, {}}), "");
    EXPECT_EQ(linear(op, {{1}, {}}), "");
    EXPECT_EQ(linear(op, {{6}, {6}}), "");
    EXPECT_EQ(linear(op, {{3, 6}, {3, 6}, 0, 16}), "");
    EXPECT_THAT(linear(op, {{6}, {1}}), HasSubstr("has 6 scales and 1 zero points"));
    EXPECT_THAT(linear(op, {{}, {6}}), HasSubstr("has 1 scales and 6 zero points"));
    EXPECT_THAT(linear(op, {{6}, {6}, 0}), HasSubstr("has 6 scales for 40 places of axis 0"));
    EXPECT_THAT(linear(op, {{3, 6}, {1, 6}, 0, 16}), HasSubstr("has 18 scales and 6 zero points"));
    EXPECT_THAT(linear(op, {{2, 6}, {2, 6}, 0, 16}), HasSubstr("has scales [2, 6]"));
    EXPECT_THAT(linear(op, {{6, 3}, {6, 3}, 0, 16}), HasSubstr("has scales [6, 3]"));
    EXPECT_THAT(linear(op, {{18}, {18}, 0, 16}), HasSubstr("as many axes"));
    EXPECT_THAT(linear(op, {{3, 6}, {3, 6}, 0, -16}), HasSubstr("negative"));
    EXPECT_THAT(linear(op, {{3, 6}, {3, 6}, 0, INT64_MAX}), HasSubstr("has scales [3, 6]"));
  }
  EXPECT_THAT(linear("DequantizeLinear", {{6}, {6}, 1, 0, DType::kU8}),
              HasSubstr("with zero points of type"));
}

std::string integer(const char* op, const std::string& x, const Dims& w, const Dims& x_zero,
                    const Dims& w_zero) {
  GraphBuilder g;
  const ValueId in = g.input("x", x, DType::kU8);
  return refusal([&] {
    g.onnx(op, {in, zeros(g, DType::kU8, w), zeros(g, DType::kU8, x_zero), zeros(g, DType::kU8, w_zero)});
  });
}

TEST(MatMulInteger, ZeroPointsAreOneOrOneEach) {
  EXPECT_EQ(integer("MatMulInteger", "4, 5", {5, 6}, {}, {}), "");
  EXPECT_EQ(integer("MatMulInteger", "4, 5", {5, 6}, {4}, {6}), "");
  EXPECT_EQ(integer("MatMulInteger", "n, 5", {5, 6}, {4}, {6}), "") << "n is known when it runs";
  EXPECT_THAT(integer("MatMulInteger", "4, 5", {5, 6}, {5}, {}), HasSubstr("has 5 zero points for 4 rows"));
  EXPECT_THAT(integer("MatMulInteger", "4, 5", {5, 6}, {}, {2}),
              HasSubstr("has 2 zero points for 6 columns"));
}

TEST(ConvInteger, ZeroPointsAreOneOrOneAChannel) {
  EXPECT_EQ(integer("ConvInteger", "1, 2, 8", {3, 2, 3}, {}, {1}), "");
  EXPECT_EQ(integer("ConvInteger", "1, 2, 8", {3, 2, 3}, {1}, {3}), "");
  EXPECT_THAT(integer("ConvInteger", "1, 2, 8", {3, 2, 3}, {2}, {}),
              HasSubstr("has 2 zero points for its input"));
  EXPECT_THAT(integer("ConvInteger", "1, 2, 8", {3, 2, 3}, {}, {2}),
              HasSubstr("has 2 zero points for its weights"));
}

// The older operators are made of these.
TEST(QLinearMatMul, ScalesAndZeroPointsFitTheData) {
  const auto refused = [](const Dims& b_zero, const Dims& y_zero) {
    GraphBuilder g;
    const ValueId a = g.input("a", "4, 5", DType::kU8), scale = g.real(0.5f), zero = zeros(g, DType::kU8, {});
    return refusal([&] {
      g.onnx("QLinearMatMul", {a, scale, zero, zeros(g, DType::kU8, {5, 6}), zeros(g, DType::kF32, {6}),
                               zeros(g, DType::kU8, b_zero), scale, zeros(g, DType::kU8, y_zero)});
    });
  };
  EXPECT_EQ(refused({6}, {}), "");
  EXPECT_EQ(refused({1}, {}), "") << "one zero point for all columns";
  EXPECT_THAT(refused({5}, {}), HasSubstr("has 6 scales and 5 zero points"));
  EXPECT_THAT(refused({6}, {6}), HasSubstr("has 1 scales and 6 zero points"));
}

}  // namespace
}  // namespace ark
