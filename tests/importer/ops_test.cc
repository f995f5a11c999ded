#include "base/ir/ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/ir/keys.h"
#include "tests/importer/graph_builder.h"
#include "tests/importer/proto.h"

namespace ark {
namespace {

using test::attribute;
using test::GraphBuilder;
using testing::HasSubstr;
using Ints = std::vector<int64_t>;

TEST(OpNames, AreUniqueAndReadBack) {
  std::set<std::string_view> names;
  for (int i = 0; i < static_cast<int>(Op::kCount); ++i) {
    const Op op = static_cast<Op>(i);
    EXPECT_TRUE(names.insert(name_of(op)).second) << name_of(op);
    EXPECT_EQ(op_from_name(name_of(op)), op);
  }
  EXPECT_EQ(op_from_name("Nonsense"), Op::kCount);
  EXPECT_EQ(name_of(Op::kMatMulNBits), "MatMulNBits");
  EXPECT_EQ(name_of(Op::kScan), "Scan");
  EXPECT_EQ(name_of(Op::kCast), "Cast");
  EXPECT_TRUE(is_unary_pointwise(Op::kCast) && !is_unary_pointwise(Op::kAdd));
  EXPECT_TRUE(is_binary_pointwise(Op::kPRelu) && is_pointwise(Op::kClip) && !is_pointwise(Op::kDims));
}

TEST(OpAttributes, ATypoOrAnotherTypeIsRefusedByName) {
  const auto verified = [](Attributes attributes) -> std::string {
    GraphBuilder g;
    g.output(g.node(Op::kSoftmax, {g.input("x", "2, 3")}, {{key::kAxis, 1}}));
    g.graph.nodes[0].attributes = std::move(attributes);
    try {
      verify(g.graph, "a test");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInternal);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(verified({{key::kAxis, 1}}), "");
  const auto refused = [](const char* why) {
    return testing::AllOf(HasSubstr("after a test: node Softmax0"), HasSubstr(why));
  };
  EXPECT_THAT(verified({{Key<int64_t>{"axes"}, 1}}), refused("Softmax has no attribute 'axes'"));
  EXPECT_THAT(verified({{key::kEpsilon, 1e-5}}), refused("Softmax has no attribute 'epsilon'"));
  EXPECT_THAT(verified({{Key<double>{"axis"}, 1.0}}),
              refused("attribute 'axis' of Softmax has another type"));
  Attributes named;
  named.set_named("axsi", int64_t{1});
  EXPECT_THAT(verified(named), refused("'axsi'"));
}

TEST(Registry, KnowsOperatorsByDomain) {
  EXPECT_GE(all_op_importers().size(), 160u);
  EXPECT_TRUE(find_op_importer("ai.onnx", "MatMul"));
  EXPECT_TRUE(find_op_importer("com.microsoft", "GroupQueryAttention"));
  EXPECT_FALSE(find_op_importer("", "GroupQueryAttention"));
  EXPECT_FALSE(find_op_importer("", "Nonsense"));
}

TEST(Registry, RefusalsSayWhatToDo) {
  GraphBuilder g;
  try {
    g.onnx("Multinomial", {g.input("x", "4, 8")});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kUnsupported);
    EXPECT_THAT(e.what(), HasSubstr("Multinomial_test"));
    EXPECT_THAT(e.what(), HasSubstr("export"));
  }
}

TEST(Reshape, ZeroCopiesAndMinusOneFills) {
  GraphBuilder g;
  const ValueId x = g.input("x", "batch, seq, 64");
  EXPECT_EQ(g.shape(g.onnx("Reshape", {x, g.ints({0, -1, 4, 16})})[0]), "[batch, seq, 4, 16]");
  EXPECT_EQ(g.shape(g.onnx("Reshape", {x, g.ints({-1, 64})})[0]), "[batch*seq, 64]");
  EXPECT_EQ(g.onnx("Reshape", {x, g.ints({0, 0, -1})})[0], x);  // nothing to do
  const ValueId empty = g.input("e", "0, 4");
  EXPECT_EQ(g.shape(g.onnx("Reshape", {empty, g.ints({0, 7})}, {attribute("allowzero", 1)})[0]), "[0, 7]");
  EXPECT_THROW(g.onnx("Reshape", {x, g.ints({-1, -1})}), Error);
  EXPECT_THROW(g.onnx("Reshape", {g.input("y", "2, 3"), g.ints({4, -1})}), Error);
}

TEST(Reshape, BackFromRowsDividesExactly) {
  GraphBuilder g;
  const ValueId rows = g.input("x", "batch*seq, 192");
  const ValueId target = g.emit(Op::kDims, {}, {{key::kValues, test::shape_of("batch, seq, -1")}});
  EXPECT_EQ(g.shape(g.onnx("Reshape", {rows, target})[0]), "[batch, seq, 192]");
}

TEST(Squeeze, AxesAsAttributeAndAsInput) {
  GraphBuilder g;
  const ValueId x = g.input("x", "1, batch, 1");
  EXPECT_EQ(g.shape(g.onnx("Squeeze", {x}, {attribute("axes", Ints{0, -1})}, 11)[0]), "[batch]");
  EXPECT_EQ(g.shape(g.onnx("Squeeze", {x, g.ints({0})}, {}, 13)[0]), "[batch, 1]");
  EXPECT_EQ(g.shape(g.onnx("Unsqueeze", {x, g.ints({-1, 1})}, {}, 13)[0]), "[1, 1, batch, 1, 1]");
  EXPECT_THROW(g.onnx("Squeeze", {g.input("y", "3, 2"), g.ints({0})}), Error);
  EXPECT_EQ(g.shape(g.onnx("Squeeze", {x})[0]), "?");  // the rank depends on `batch`
  const ValueId axes = g.input("axes", "2", DType::kI64);
  EXPECT_THAT(g.shape(g.onnx("Squeeze", {x, axes})[0]), testing::MatchesRegex("\\[[^,]+\\]"));
  EXPECT_THROW(g.onnx("Squeeze", {g.input("z", "batch"), axes}), Error);
}

TEST(Slice, BoundsAreClampedAndWrapped) {
  GraphBuilder g;
  const ValueId x = g.input("x", "batch, past + seq, 8");
  const auto shape = [&](int64_t begin, int64_t end, int64_t axis, int64_t step = 1) {
    return g.shape(g.onnx("Slice", {x, g.ints({begin}), g.ints({end}), g.ints({axis}), g.ints({step})})[0]);
  };
  EXPECT_EQ(shape(0, INT64_MAX, 1), "[batch, past + seq, 8]");
  EXPECT_EQ(shape(INT64_MIN, INT64_MAX, 1), "[batch, past + seq, 8]");
  EXPECT_EQ(shape(-4, INT64_MAX, 2), "[batch, past + seq, 4]");
  EXPECT_EQ(shape(2, 100, -1), "[batch, past + seq, 6]");
  EXPECT_EQ(shape(5, 2, 2), "[batch, past + seq, 0]");
  EXPECT_EQ(shape(-1, INT64_MIN, 2, -1), "[batch, past + seq, 8]");
  EXPECT_EQ(shape(-9, INT64_MIN, 2, -1), "[batch, past + seq, 1]");  // backwards a start is an element
  EXPECT_EQ(shape(INT64_MIN, INT64_MIN, 2, -2), "[batch, past + seq, 1]");
  EXPECT_EQ(shape(-9, -20, 2, -1), "[batch, past + seq, 1]");
  EXPECT_EQ(shape(0, 8, 2, 3), "[batch, past + seq, 3]");
  EXPECT_EQ(shape(5, 8, 2, INT64_MAX), "[batch, past + seq, 1]");
  EXPECT_EQ(shape(5, INT64_MIN, 2, INT64_MIN), "[batch, past + seq, 1]");  // whose negative is no number
  EXPECT_EQ(shape(-1, INT64_MAX, 1), "[batch, 1, 8]");                     // the last token
  EXPECT_THROW(shape(0, 1, 3), Error);
  EXPECT_THROW(shape(0, 1, 2, 0), Error);
}

TEST(Slice, BackwardsOfASizeThatMayBeNothing) {
  GraphBuilder g;
  const ValueId x = g.input("x", "n"), begins[] = {g.ints({INT64_MIN}), g.ints({-3}), g.ints({-1})};
  for (const ValueId begin : begins) {
    const ValueId y = g.onnx("Slice", {x, begin, g.ints({INT64_MIN}), g.ints({0}), g.ints({-1})})[0];
    EXPECT_EQ(g.graph.value(y).shape->at(0).evaluate({{"n", 0}}), 0) << g.shape(y);
    EXPECT_EQ(g.graph.value(y).shape->at(0).evaluate({{"n", 2}}), begin == begins[2] ? 2 : 1) << g.shape(y);
  }
}

TEST(Slice, OfATableBySizesHoldsTheCallerToItsLength) {
  GraphBuilder g;
  const ValueId table = g.input("t", "1024, 64"),
                end = g.emit(Op::kDims, {}, {{key::kValues, test::shape_of("past + seq")}});
  const ValueId y = g.onnx(
      "Slice", {table, g.emit(Op::kDims, {}, {{key::kValues, test::shape_of("past")}}), end, g.ints({0})})[0];
  EXPECT_EQ(g.shape(y), "[seq, 64]");
  EXPECT_EQ(g.graph.assumptions.size(), 2u);
}

TEST(Slice, DataDependentBoundsStayInputs) {
  GraphBuilder g;
  const ValueId y =
      g.onnx("Slice", {g.input("x", "8, 4"), g.input("s", "1", DType::kI64), g.ints({8}), g.ints({0})})[0];
  EXPECT_EQ(g.shape(y), "[Slice_0.d0, 4]");
  EXPECT_EQ(g.last().inputs.size(), 5u);
}

TEST(Split, EqualAndUnequalParts) {
  GraphBuilder g;
  const ValueId x = g.input("x", "batch, 10");
  const auto parts = g.onnx("Split", {x}, {attribute("axis", 1), attribute("num_outputs", 3)}, 18, 3);
  EXPECT_EQ(g.shape(parts[0]) + g.shape(parts[2]), "[batch, 4][batch, 2]");
  EXPECT_THROW(g.onnx("Split", {x}, {attribute("axis", 1)}, 13, 3), Error);
  const auto sized = g.onnx("Split", {x, g.ints({1, 9})}, {attribute("axis", -1)}, 13, 2);
  EXPECT_EQ(g.shape(sized[1]), "[batch, 9]");
  EXPECT_THROW(g.onnx("Split", {x, g.ints({1, 8})}, {attribute("axis", -1)}, 13, 2), Error);
}

TEST(Expand, SizesOfDifferentNames) {
  GraphBuilder g;
  const ValueId x = g.input("x", "batch, 1, 4");
  EXPECT_EQ(g.shape(g.onnx("Expand",
                           {x, g.emit(Op::kDims, {}, {{key::kValues, test::shape_of("2, 1, seq, 1")}})})[0]),
            "[2, batch, seq, 4]");
  EXPECT_EQ(g.onnx("Expand", {x, g.ints({1})})[0], x);
}

TEST(Softmax, CoercesToAMatrixBeforeOpset13) {
  GraphBuilder g;
  const ValueId x = g.input("x", "2, 3, 4");
  EXPECT_EQ(g.shape(g.onnx("Softmax", {x}, {}, 11)[0]), "[2, 3, 4]");
  EXPECT_EQ(g.ops(), "Reshape Softmax Reshape");
  GraphBuilder h;
  h.onnx("Softmax", {h.input("x", "2, 3, 4")}, {}, 13);
  EXPECT_EQ(h.ops(), "Softmax");
  EXPECT_EQ(h.last().attributes.get(key::kAxis), 2);
}

TEST(Reduce, AxesMovedFromAttributeToInput) {
  GraphBuilder g;
  const ValueId x = g.input("x", "2, s, 4");
  EXPECT_EQ(g.shape(g.onnx("ReduceMean", {x}, {attribute("axes", Ints{-1})}, 13)[0]), "[2, s, 1]");
  EXPECT_EQ(g.shape(g.onnx("ReduceMean", {x, g.ints({1, 2})}, {attribute("keepdims", 0)}, 18)[0]), "[2]");
  EXPECT_EQ(g.shape(g.onnx("ReduceSum", {x}, {attribute("keepdims", 0)}, 13)[0]), "[]");
  EXPECT_EQ(g.shape(g.onnx("ReduceSum", {x}, {attribute("noop_with_empty_axes", 1)}, 13)[0]), "[2, s, 4]");
}

TEST(Clip, BoundsAsAttributesThenAsInputs) {
  GraphBuilder g;
  g.onnx("Clip", {g.input("x", "4")}, {attribute("max", 6.0)}, 6);
  EXPECT_EQ(g.last().inputs[1], kNoValue);
  EXPECT_NE(g.last().inputs[2], kNoValue);
  g.onnx("Clip", {g.input("y", "4"), g.real(0)}, {}, 13);
  EXPECT_NE(g.last().inputs[1], kNoValue);
}

TEST(Gemm, IsAProductAFactorAndABiasWithBetaFolded) {
  GraphBuilder g;
  const ValueId bias = g.reals({2}, {1, 2});
  const ValueId y = g.onnx("Gemm", {g.input("a", "n, 4"), g.input("b", "2, 4"), bias},
                           {attribute("transB", 1), attribute("alpha", 0.5), attribute("beta", 2.0)})[0];
  EXPECT_EQ(g.shape(y), "[n, 2]");
  EXPECT_EQ(g.ops(), "MatMul Mul Add");
  EXPECT_EQ(materialise(*g.graph.value(g.last().inputs[1]).constant).real(1), 4);
  const Node& factor = *g.graph.producer(g.last().inputs[0]);
  EXPECT_EQ(materialise(*g.graph.value(factor.inputs[1]).constant).real(0), 0.5);
}

TEST(Pad, AmountsOfNamedAxes) {
  GraphBuilder g;
  const ValueId y = g.onnx("Pad", {g.input("x", "n, 4"), g.ints({1, 2}), kNoValue, g.ints({-1})}, {}, 18)[0];
  EXPECT_EQ(g.shape(y), "[n, 7]");
}

TEST(Conv, SamePaddingIsResolved) {
  GraphBuilder g;
  g.onnx("Conv", {g.input("x", "1, 1, 5, 5"), g.input("w", "1, 1, 3, 3")},
         {attribute("auto_pad", std::string("SAME_UPPER")), attribute("strides", Ints{2, 2})});
  EXPECT_EQ(g.last().attributes.get(key::kPads), (Ints{1, 1, 1, 1}));
  EXPECT_EQ(g.shape(g.last().outputs[0]), "[1, 1, 3, 3]");
}

TEST(Microsoft, SkipLayerNormIsASumAndANorm) {
  GraphBuilder g;
  const ValueId row = g.reals({8}, std::vector<float>(8, 1));
  const auto y =
      g.onnx("SkipLayerNormalization", {g.input("x", "b, s, 8"), g.input("skip", "b, s, 8"), row, row, row},
             {}, 1, 4, "com.microsoft");
  EXPECT_EQ(g.ops(), "Add Add LayerNorm");
  EXPECT_EQ(g.shape(y[3]), "[b, s, 8]");
}

TEST(Microsoft, SkipNormsHaveAnEpsilonOfTheirOwn) {  // as ONNX Runtime's schemas say
  for (const bool simplified : {false, true}) {
    GraphBuilder g;
    const ValueId x = g.input("x", "b, s, 8"), row = g.reals({8}, std::vector<float>(8, 1));
    const std::string prefix = simplified ? "Simplified" : "";
    g.onnx("Skip" + prefix + "LayerNormalization", {x, x, row}, {}, 1, 1, "com.microsoft");
    EXPECT_EQ(g.last().attributes.get(key::kEpsilon), 1e-12);
    g.onnx(prefix + "LayerNormalization", {x, row});
    EXPECT_FLOAT_EQ(static_cast<float>(g.last().attributes.get(key::kEpsilon)), 1e-5f);
  }
}

TEST(Microsoft, RotaryTablesTellTheHeads) {
  GraphBuilder g;
  const ValueId x = g.input("x", "b, s, 16"), ids = g.input("ids", "b, s", DType::kI64),
                table = g.reals({32, 4}, std::vector<float>(128, 0.5f));
  EXPECT_EQ(g.shape(g.onnx("RotaryEmbedding", {x, ids, table, table}, {}, 1, 1, "com.microsoft")[0]),
            "[b, s, 16]");
  EXPECT_EQ(g.ops(), "Reshape Rotary Reshape");
  const Node* rotary = g.graph.producer(g.last().inputs[0]);
  EXPECT_EQ(g.shape(rotary->outputs[0]), "[b, s, 2, 8]");
  EXPECT_EQ(rotary->attributes.get(key::kRotaryDim), 8);
  const ValueId odd = g.input("odd", "b, s, 20");
  EXPECT_THROW(g.onnx("RotaryEmbedding", {odd, ids, table, table}, {}, 1, 1, "com.microsoft"), Error);
}

TEST(Microsoft, GroupQueryAttentionOfPackedProjections) {
  GraphBuilder g;
  const ValueId table = g.reals({32, 4}, std::vector<float>(128, 0.5f));
  const std::vector<ValueId> in{
      g.input("qkv", "B, S, 96"),
      kNoValue,
      kNoValue,
      g.input("pk", "B, 2, P, dim"),
      g.input("pv", "B, 2, P, dim"),
      g.input("last", "B", DType::kI32),
      g.emit(Op::kCast, {g.emit(Op::kDims, {}, {{key::kValues, test::shape_of("T")}})}, {{key::kTo, 6}}),
      table,
      table};
  const auto y = g.onnx("GroupQueryAttention", in,
                        {attribute("num_heads", 8), attribute("kv_num_heads", 2), attribute("do_rotary", 1)},
                        1, 3, "com.microsoft");
  EXPECT_EQ(g.shape(y[0]), "[B, S, 64]");
  EXPECT_EQ(g.shape(y[1]), "[B, 2, max(P, T), 8]");
  EXPECT_THAT(g.ops(), HasSubstr("Rotary Rotary"));
  EXPECT_THAT(g.ops(), HasSubstr("Attention"));
  EXPECT_THROW(g.onnx("GroupQueryAttention", in, {attribute("num_heads", 8), attribute("kv_num_heads", 3)}, 1,
                      3, "com.microsoft"),
               Error);
}

TEST(Microsoft, AttentionSplitsThePast) {
  GraphBuilder g;
  const std::vector<ValueId> in{g.input("x", "B, S, 32"), g.weight({32, 96}), g.weight({96}),
                                g.input("mask", "B, T", DType::kI32), g.input("past", "2, B, 4, P, 8")};
  const auto y = g.onnx("Attention", in, {attribute("num_heads", 4), attribute("unidirectional", 1)}, 1, 2,
                        "com.microsoft");
  EXPECT_EQ(g.shape(y[0]), "[B, S, 32]");
  EXPECT_EQ(g.shape(y[1]), "[2, B, 4, P + S, 8]");
  ASSERT_FALSE(g.graph.assumptions.empty());
  EXPECT_EQ(g.graph.assumptions[0].first.str() + "=" + g.graph.assumptions[0].second.str(), "T=P + S");
}

// A table of 5 rows of 80 codes, two a byte, in blocks of 16: 5 scales a row, their zeros filled up to 6.
TEST(Microsoft, GatherBlockQuantizedIsALookUpInWhatIsDequantized) {
  const auto bytes = [](GraphBuilder& g, Dims dims, DType type = DType::kU8) {
    return g.graph.add_constant(make_constant(Tensor::zeros(type, std::move(dims))));
  };
  const auto emit = [](GraphBuilder& g, std::vector<ValueId> in, int64_t bits = 4, int64_t block = 16) {
    return g.onnx("GatherBlockQuantized", std::move(in),
                  {attribute("bits", bits), attribute("block_size", block), attribute("quantize_axis", -1)},
                  21, 1, "com.microsoft")[0];
  };
  GraphBuilder g;
  const ValueId ids = g.input("ids", "batch, seq", DType::kI64), data = bytes(g, {5, 40}),
                scales = g.reals({5, 5}, std::vector<float>(25, 1));
  EXPECT_EQ(g.shape(emit(g, {data, ids, scales, bytes(g, {5, 3})})), "[batch, seq, 80]");
  EXPECT_EQ(g.ops(), "DequantizeLinear Gather");
  const Node& dequantize = *g.graph.producer(g.last().inputs[0]);
  const auto constant = [&](std::size_t i) { return g.graph.value(dequantize.inputs[i]).constant; };
  EXPECT_EQ(constant(0)->dtype, DType::kU4);
  EXPECT_TRUE(same_payload(*constant(0), *g.graph.value(data).constant)) << "the codes were copied";
  EXPECT_EQ(constant(2)->dims, (Dims{5, 5}));
  EXPECT_EQ(dequantize.attributes.get(key::kAxis), 1);
  EXPECT_EQ(dequantize.attributes.get(key::kBlockSize), 16);

  const auto middle = [&](const GraphBuilder& made) {
    return made.graph.producer(made.last().inputs[0])->attributes.get(key::kZeroPoint);
  };
  emit(g, {data, ids, scales});
  EXPECT_EQ(middle(g), 8);
  emit(g, {bytes(g, {5, 80}), ids, scales}, 8);
  EXPECT_EQ(middle(g), 128);
  EXPECT_EQ(g.shape(emit(g, {bytes(g, {5, 20}), ids, scales, bytes(g, {5, 2})}, 2)), "[batch, seq, 80]");
  EXPECT_EQ(middle(g), 2);
  emit(g, {bytes(g, {5, 80}, DType::kU4), ids, scales});
  EXPECT_EQ(middle(g), 0);

  const auto refused = [&](Code code, std::vector<ValueId> in, int64_t bits, int64_t block) {
    return test::error_of(code, [&] { emit(g, std::move(in), bits, block); });
  };
  EXPECT_THAT(refused(Code::kBadModel, {data, ids, scales, bytes(g, {5, 2})}, 4, 16),
              HasSubstr("has 4 zero points a row for 5 scales"));
  EXPECT_THAT(refused(Code::kBadModel, {data, ids, g.real(1)}, 4, 16), HasSubstr("another rank"));
  EXPECT_THAT(refused(Code::kBadModel, {data, ids, scales}, 4, 24), HasSubstr("power of two"));
  EXPECT_THAT(refused(Code::kUnsupported, {data, ids, scales}, 3, 16), HasSubstr("3-bit"));
  EXPECT_THAT(refused(Code::kUnsupported, {scales, ids, scales}, 4, 16), HasSubstr("codes of type f32"));
  EXPECT_THAT(refused(Code::kUnsupported, {g.input("d", "5, 40", DType::kU8), ids, scales}, 4, 16),
              HasSubstr("no constant"));
}

TEST(Attention, ScoresAsOutputAreRefused) {
  GraphBuilder g;
  const ValueId q = g.input("q", "B, 4, S, 8");
  EXPECT_THROW(g.onnx("Attention", {q, q, q}, {}, 23, 4), Error);
  EXPECT_EQ(g.shape(g.onnx("Attention", {q, q, q}, {}, 23)[0]), "[B, 4, S, 8]");
}

TEST(Constants, DropoutInTrainingIsRefused) {
  GraphBuilder g;
  const ValueId x = g.input("x", "4");
  EXPECT_EQ(g.onnx("Dropout", {x})[0], x);
  const ValueId yes = g.emit(Op::kCast, {g.integer(1)}, {{key::kTo, 9}});
  EXPECT_THROW(g.onnx("Dropout", {x, kNoValue, yes}), Error);
}

}  // namespace
}  // namespace ark
