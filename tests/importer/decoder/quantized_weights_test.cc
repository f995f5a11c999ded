// Which nodes stand for a quantized matrix, and for which one: against the operators' definitions.
#include "importer/decoder/quantized_weights.h"

#include <gtest/gtest.h>

#include <random>

#include "base/ir/keys.h"
#include "base/ir/quantized.h"
#include "tests/importer/graph_builder.h"

namespace ark::decoder {
namespace {

using test::GraphBuilder;

ValueId add(GraphBuilder& g, DType type, Dims dims, const std::vector<int>& values) {
  Tensor t = Tensor::zeros(type, std::move(dims));
  for (int64_t i = 0; i < t.size(); ++i) {
    const int v = values[i];
    const int bits = bits_of(type), each = 8 / bits;
    t.as<uint8_t>()[i / each] |= static_cast<uint8_t>((v & ((1 << bits) - 1)) << i % each * bits);
  }
  return g.graph.add_constant(make_constant(std::move(t), "codes"));
}

enum class Scaling { kOne, kByAxis, kByBlock };

struct Case {
  DType type;
  Scaling scaling;
  int64_t axis;
  bool zeros, turned;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << name_of(c.type) << ", scaling " << static_cast<int>(c.scaling) << ", axis " << c.axis
             << ", zeros " << c.zeros << ", turned " << c.turned;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType type : {DType::kI8, DType::kU8, DType::kI4, DType::kU4, DType::kI2, DType::kU2})
    for (const Scaling scaling : {Scaling::kOne, Scaling::kByAxis, Scaling::kByBlock})
      for (const int64_t axis : {0, 1})
        for (const bool zeros : {false, true})
          for (const bool turned : {false, true}) all.push_back({type, scaling, axis, zeros, turned});
  return all;
}

// DequantizeLinear of a [10, 7] matrix in blocks of 4, by its definition.
TEST(QuantizedWeight, IsWhatDequantizeLinearMakes) {
  constexpr int64_t kBlock = 4;
  const Dims dims{10, 7};
  std::mt19937 random(9);
  for (const Case& c : cases()) {
    SCOPED_TRACE(c);
    Dims places = dims;
    auto& blocks = places[c.axis];
    blocks = (blocks + kBlock - 1) / kBlock;
    if (c.scaling == Scaling::kByAxis) places = {dims[c.axis]};
    if (c.scaling == Scaling::kOne) places = {};
    const int low = is_signed(c.type) ? -(1 << (bits_of(c.type) - 1)) : 0;
    const auto codes = [&](int64_t count) {
      std::vector<int> result;
      while (static_cast<int64_t>(result.size()) < count)
        result.push_back(low + static_cast<int>(random() % (1u << bits_of(c.type))));
      return result;
    };
    const std::vector<int> x = codes(70), zero = codes(element_count(places));
    std::vector<float> scale;
    for (std::size_t i = 0; i < zero.size(); ++i) scale.push_back(static_cast<float>(random() % 99) / 64.f);
    GraphBuilder g;
    ValueId data = kNoValue;
    if (c.turned) {  // stored as the transpose
      std::vector<int> stored(70);
      for (std::size_t i = 0; i < 70; ++i) stored[i % 7 * 10 + i / 7] = x[i];
      data =
          g.graph.add_constant(transposed(g.graph.value(add(g, c.type, {7, 10}, stored)).constant, {1, 0}));
    } else {
      data = add(g, c.type, dims, x);
    }
    std::vector<ValueId> in{data, g.reals(places, scale)};
    if (c.zeros) in.push_back(add(g, c.type, places, zero));
    const int64_t given = c.zeros ? 0 : 1;
    const ValueId y = g.emit(Op::kDequantizeLinear, in,
                             {{key::kAxis, c.axis},
                              {key::kBlockSize, c.scaling == Scaling::kByBlock ? kBlock : int64_t{0}},
                              {key::kZeroPoint, given}});
    const ConstantPtr w = quantized_weight(g.graph, *g.graph.producer(y));
    ASSERT_TRUE(w);
    ASSERT_TRUE(w->quantized);
    ASSERT_EQ(w->dims, dims);
    const Tensor all = materialise(*w);
    for (int64_t r = 0; r < 10; ++r)
      for (int64_t k = 0; k < 7; ++k) {
        const int64_t along = c.axis == 0 ? r : k;
        const int64_t at = c.scaling == Scaling::kOne      ? 0
                           : c.scaling == Scaling::kByAxis ? along
                           : c.axis == 0                   ? r / kBlock * 7 + k
                                                           : r * places[1] + k / kBlock;
        const auto s = static_cast<std::size_t>(at);
        const int64_t from = c.zeros ? zero[s] : given;
        ASSERT_EQ(all.as<float>()[r * 7 + k], static_cast<float>(x[r * 7 + k] - from) * scale[s])
            << r << ", " << k;
      }
  }
}

TEST(QuantizedWeight, DequantizeLinearOfOtherThingsIsNone) {
  GraphBuilder g;
  const ValueId codes = add(g, DType::kI8, {4, 6}, std::vector<int>(24, 1));
  const auto made = [&](std::vector<ValueId> in, int64_t axis, int64_t block) {
    const ValueId y =
        g.node(Op::kDequantizeLinear, std::move(in), {{key::kAxis, axis}, {key::kBlockSize, block}});
    return quantized_weight(g.graph, *g.graph.producer(y)) != nullptr;
  };
  const ValueId six = g.reals({6}, std::vector<float>(6, 1));
  EXPECT_TRUE(made({codes, six}, 1, 0));
  EXPECT_FALSE(made({codes, g.input("scales", "6")}, 1, 0));
  EXPECT_FALSE(made({g.input("codes", "4, 6", DType::kI8), six}, 1, 0));
  EXPECT_FALSE(made({add(g, DType::kI8, {2, 2, 6}, std::vector<int>(24, 1)), six}, 2, 0));
  EXPECT_FALSE(made({g.ints({4, 6}, std::vector<int64_t>(24, 1)), six}, 1, 0));
}

// One number in a vector and one in no axes are the same scale.
TEST(QuantizedWeight, OneScaleAndOneZeroMayDifferInAxes) {
  for (const Dims& scale : {Dims{}, Dims{1}, Dims{1, 1}})
    for (const Dims& zero : {Dims{}, Dims{1}}) {
      GraphBuilder g;
      const ValueId y = g.node(Op::kDequantizeLinear,
                               {add(g, DType::kU8, {2, 3}, {9, 8, 7, 6, 5, 4}), g.reals(scale, {0.5f}),
                                add(g, DType::kU8, zero, {7})},
                               {{key::kAxis, 0}, {key::kBlockSize, 0}});
      const ConstantPtr w = quantized_weight(g.graph, *g.graph.producer(y));
      ASSERT_TRUE(w);
      const Tensor t = materialise(*w);
      for (int i = 0; i < 6; ++i) EXPECT_EQ(t.as<float>()[i], static_cast<float>(2 - i) * 0.5f);
    }
}

// Scales that are stored as integers themselves.
TEST(QuantizedWeight, ScalesMayBeQuantizedOnce) {
  GraphBuilder g;
  const ValueId scales =
      g.node(Op::kDequantizeLinear, {add(g, DType::kI8, {2, 2}, {4, -2, 6, 1}), g.real(0.25f)},
             {{key::kAxis, 0}, {key::kBlockSize, 0}});
  ASSERT_FALSE(g.graph.value(scales).constant);
  const ValueId y =
      g.node(Op::kDequantizeLinear, {add(g, DType::kI8, {2, 4}, {1, 2, 3, 4, -5, 6, 7, 8}), scales},
             {{key::kAxis, 1}, {key::kBlockSize, 2}});
  const ConstantPtr w = quantized_weight(g.graph, *g.graph.producer(y));
  ASSERT_TRUE(w);
  const Tensor t = materialise(*w);
  const std::vector<float> want{1, 2, -1.5, -2, -7.5, 9, 1.75, 2};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(t.as<float>()[i], want[i]) << i;
}

struct NBits {
  int64_t bits = 4;
  DType zero_type = DType::kU8;
  std::vector<int64_t> places;  // g_idx
};

// MatMulNBits with K = 40, N = 3 in blocks of 16: every code and zero its own.
ConstantPtr nbits(const NBits& c) {
  GraphBuilder g;
  const int64_t blocks = 3, bytes = 16 * c.bits / 8, zero_bytes = (blocks * c.bits + 7) / 8;
  std::vector<int> codes, zeros;
  for (int64_t i = 0; i < 3 * blocks * bytes; ++i) codes.push_back(static_cast<int>(i * 37 % 256));
  for (int64_t i = 0; i < 3 * zero_bytes; ++i) zeros.push_back(static_cast<int>(i * 29 % 256));
  std::vector<ValueId> in{g.input("x", "n, 40"), add(g, DType::kU8, {3, blocks, bytes}, codes),
                          g.reals({9}, {1, 2, 3, 4, 5, 6, 7, 8, 9}), kNoValue, kNoValue};
  if (c.zero_type == DType::kU8) in[3] = add(g, DType::kU8, {3 * zero_bytes}, zeros);
  if (c.zero_type == DType::kF32) in[3] = g.reals({9}, std::vector<float>(9, 1));
  if (!c.places.empty()) in[4] = g.ints(c.places);
  const ValueId y = g.emit(Op::kMatMulNBits, in,
                           {{key::kK, 40}, {key::kN, 3}, {key::kBits, c.bits}, {key::kBlockSize, 16}});
  const ConstantPtr w = quantized_weight(g.graph, *g.graph.producer(y));
  if (!w) return nullptr;
  const Tensor all = materialise(*w);
  const int64_t per_byte = 8 / c.bits, most = (1 << c.bits) - 1;
  for (int64_t n = 0; n < 3; ++n)
    for (int64_t k = 0; k < 40; ++k) {
      const int64_t b = k / 16, i = k % 16;
      const int code = codes[(n * blocks + b) * bytes + i / per_byte] >> i % per_byte * c.bits;
      const int zero = c.zero_type != DType::kU8
                           ? 1 << (c.bits - 1)
                           : zeros[n * zero_bytes + b / per_byte] >> b % per_byte * c.bits;
      EXPECT_EQ(all.as<float>()[n * 40 + k],
                static_cast<float>((code & most) - (zero & most)) * static_cast<float>(n * blocks + b + 1))
          << n << ", " << k;
    }
  return w;
}

TEST(QuantizedWeight, IsWhatMatMulNBitsMultipliesWith) {
  for (const int64_t bits : {2, 4, 8})
    for (const DType zeros : {DType::kU8, DType::kUndefined}) {
      SCOPED_TRACE(bits);
      EXPECT_TRUE(nbits({bits, zeros, {}}));
    }
}

TEST(QuantizedWeight, BlocksMayBeNamedInTheirOwnOrderOnly) {
  NBits c;
  for (int64_t k = 0; k < 40; ++k) c.places.push_back(k / 16);
  EXPECT_TRUE(nbits(c));
  std::swap(c.places[0], c.places[39]);
  EXPECT_FALSE(nbits(c));
  EXPECT_FALSE(nbits({4, DType::kF32, {}})) << "zero points that are reals";
}

}  // namespace
}  // namespace ark::decoder
