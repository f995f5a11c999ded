#include "importer/infer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/import.h"
#include "tests/fixtures.h"
#include "tests/importer/graph_builder.h"

namespace ark {
namespace {

using test::GraphBuilder;
using testing::HasSubstr;

Attributes dims_of(const std::string& sizes) { return {{key::kValues, test::shape_of(sizes)}}; }

TEST(Infer, BroadcastsSymbolically) {
  GraphBuilder g;
  const ValueId a = g.input("a", "batch, 1, seq, 8"), b = g.input("b", "4, 1, 8"), c = g.input("c", "total");
  EXPECT_EQ(g.shape(g.emit(Op::kAdd, {a, b})), "[batch, 4, seq, 8]");
  EXPECT_EQ(g.shape(g.emit(Op::kMul, {g.input("s", "seq"), c})), "[max(seq, total)]");
  EXPECT_THROW(g.emit(Op::kAdd, {a, g.input("d", "7")}), Error);
}

TEST(Infer, NamesTheNodeOfAContradiction) {
  GraphBuilder g;
  try {
    g.emit(Op::kMatMul, {g.input("a", "2, 3"), g.input("b", "4, 5")});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kBadModel);
    EXPECT_THAT(e.what(), HasSubstr("MatMul0"));
    EXPECT_THAT(e.what(), HasSubstr("3 and 4"));
  }
}

TEST(Infer, RefusesMixedTypes) {
  GraphBuilder g;
  EXPECT_THROW(g.emit(Op::kAdd, {g.input("a", "2"), g.input("b", "2", DType::kI64)}), Error);
}

TEST(Infer, MatMulShapes) {
  GraphBuilder g;
  const auto shape = [&](const std::string& a, const std::string& b, Attributes at = {}) {
    return g.shape(g.emit(Op::kMatMul, {g.input("a", a), g.input("b", b)}, std::move(at)));
  };
  EXPECT_EQ(shape("batch, seq, 8", "8, 16"), "[batch, seq, 16]");
  EXPECT_EQ(shape("8", "batch, 8, 16"), "[batch, 16]");
  EXPECT_EQ(shape("batch, 4, 8", "8"), "[batch, 4]");
  EXPECT_EQ(shape("8", "8"), "[]");
  EXPECT_EQ(shape("batch, 1, s, 8", "4, t, 8", {{key::kTransB, 1}}), "[batch, 4, s, t]");
}

TEST(Infer, InnerSizesOfAProductAreAssumedEqual) {
  GraphBuilder g;
  g.emit(Op::kMatMul, {g.input("a", "s, k"), g.input("b", "kv_dim, 4")});
  ASSERT_EQ(g.graph.assumptions.size(), 1u);
  EXPECT_EQ(g.graph.assumptions[0].first.str() + "=" + g.graph.assumptions[0].second.str(), "k=kv_dim");
}

TEST(Infer, DataDependentSizesGetTheirOwnSymbolsAndKeepThem) {
  GraphBuilder g;
  const ValueId x = g.input("x", "batch, 8");
  const ValueId a = g.emit(Op::kNonZero, {x}), b = g.emit(Op::kNonZero, {x});
  EXPECT_NE(g.shape(a), g.shape(b));
  const std::string before = g.shape(a);
  infer_all(g.graph);
  EXPECT_EQ(g.shape(a), before);
}

// Elements of a Loop or Scan by what makes them, and where Scan puts them.
TEST(Infer, AgainLeavesTheSizesOfWhatIsCollected) {
  const std::vector<Op> makers = {Op::kAdd, Op::kNonZero, Op::kConcat, Op::kNeg};
  for (const Op maker : makers)
    for (int64_t rank = 1; rank <= 4; ++rank)
      for (int64_t at = -1; at <= rank; ++at) {         // -1: a Loop
        if (maker == Op::kNonZero && at > 2) continue;  // its results have two axes
        GraphBuilder g, body;
        body.graph.symbols = g.graph.symbols;
        std::string outer, inner;
        for (int64_t axis = 0; axis < rank; ++axis) {
          outer += (axis ? ", n" : "n") + std::to_string(axis);
          inner += (axis ? ", k" : "k") + std::to_string(axis);
        }
        const bool is_loop = at < 0;
        std::vector<ValueId> in;
        if (is_loop) {
          in = {g.input("trips", "", DType::kI64), kNoValue};
          body.input("trip", "", DType::kI64);
          body.graph.outputs.push_back(body.input("go", "", DType::kBool));
        }
        const ValueId x = g.input("x", outer), state = body.input("state", inner);
        in.push_back(x);
        if (!is_loop) in.push_back(g.input("rows", "length, " + outer));
        const ValueId row = is_loop ? state : body.input("row", outer);
        body.output(state);
        body.output(maker == Op::kConcat ? body.emit(maker, {state, row}, {{key::kAxis, rank - 1}})
                    : maker == Op::kAdd  ? body.emit(maker, {state, body.input("captured", outer)})
                                         : body.emit(maker, {row}));
        if (maker == Op::kAdd) {
          body.graph.captured.emplace_back(x, body.graph.inputs.back());
          body.graph.inputs.pop_back();
        }
        Attributes attributes;
        if (!is_loop)
          attributes = {{key::kNumScanInputs, 1}, {key::kScanOutputAxes, std::vector<int64_t>{at}}};
        const auto out = std::vector{g.graph.add_value("last", DType::kUndefined, std::nullopt),
                                     g.graph.add_value("all", DType::kUndefined, std::nullopt)};
        const NodeId id = g.graph.add_node(is_loop ? Op::kLoop : Op::kScan, "node", in, out, attributes);
        g.graph.node(id).subgraphs.push_back(std::make_shared<Graph>(body.graph));
        infer_all(g.graph);
        const std::string once = g.graph.str();
        for (int again = 0; again < 3; ++again) infer_all(g.graph);
        EXPECT_EQ(g.graph.str(), once) << name_of(maker) << " of rank " << rank << " at " << at;
      }
}

TEST(Infer, AgainLeavesTheSizesOfEveryModel) {
  int seen = 0;
  for (const auto& root : {test::fixtures(), test::zoo()}) {
    if (!std::filesystem::exists(root)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (entry.path().filename() != "model.onnx") continue;
      Graph graph;
      try {
        graph = import_model(entry.path());
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Code::kUnsupported) << e.what();
        continue;
      }
      const std::string once = graph.str();
      infer_all(graph);
      EXPECT_EQ(graph.str(), once) << entry.path();
      ++seen;
    }
  }
  EXPECT_GE(seen, 40);
}

TEST(Infer, ConvolutionAndPoolingSizes) {
  GraphBuilder g;
  const ValueId x = g.input("x", "batch, 3, height, 32");
  const Attributes conv{{key::kGroup, 1},
                        {key::kStrides, std::vector<int64_t>{2, 2}},
                        {key::kPads, std::vector<int64_t>{1, 1, 1, 1}}};
  EXPECT_EQ(g.shape(g.emit(Op::kConv, {x, g.input("w", "16, 3, 3, 3")}, conv)),
            "[batch, 16, floordiv(height - 1, 2) + 1, 16]");
  const Attributes pool{{key::kKernelShape, std::vector<int64_t>{3, 3}},
                        {key::kStrides, std::vector<int64_t>{2, 2}},
                        {key::kCeilMode, 1}};
  EXPECT_EQ(g.shape(g.emit(Op::kMaxPool, {g.input("y", "1, 1, 5, 6")}, pool)), "[1, 1, 2, 3]");
}

// A window that starts in the padding behind the input is dropped (PyTorch's rule, and the standard's).
TEST(Infer, CeilModeDropsTheWindowBehindTheInput) {
  GraphBuilder g;
  const Attributes pool{{key::kKernelShape, std::vector<int64_t>{1, 1}},
                        {key::kStrides, std::vector<int64_t>{2, 2}},
                        {key::kCeilMode, 1}};
  EXPECT_EQ(g.shape(g.emit(Op::kMaxPool, {g.input("x", "1, 1, 2, 3")}, pool)), "[1, 1, 1, 2]");
}

TEST(Infer, AttentionOutputs) {
  GraphBuilder g;
  const std::vector<ValueId> in{g.input("q", "B, 8, S, 16"),  g.input("k", "B, 2, S, 16"),
                                g.input("v", "B, 2, S, 24"),  kNoValue,
                                g.input("pk", "B, 2, P, 16"), g.input("pv", "B, 2, P, 24")};
  const auto y = g.emit(Op::kAttention, in, {{key::kCausal, 1}}, 3);
  EXPECT_EQ(g.shape(y[0]), "[B, 8, S, 24]");
  EXPECT_EQ(g.shape(y[1]), "[B, 2, P + S, 16]");
  EXPECT_EQ(g.shape(y[2]), "[B, 2, P + S, 24]");
}

TEST(Infer, EinsumSizes) {
  GraphBuilder g;
  const auto shape = [&](const std::string& equation, const std::string& a, const std::string& b) {
    return g.shape(g.emit(Op::kEinsum, {g.input("a", a), g.input("b", b)}, {{key::kEquation, equation}}));
  };
  EXPECT_EQ(shape("bij,bjk->bik", "B, i, 4", "B, 4, k"), "[B, i, k]");
  EXPECT_EQ(shape("...ij,...jk->...ik", "B, 2, i, 4", "4, k"), "[B, 2, i, k]");
  EXPECT_EQ(shape("ij,jk", "a, b", "b, c"), "[a, c]");
  EXPECT_THROW(shape("ij,jk->iz", "a, b", "b, c"), Error);
}

// -- symbolic elements

TEST(Elements, ShapeArithmeticFoldsToSizes) {
  GraphBuilder g;
  const ValueId shape = g.emit(Op::kDims, {}, dims_of("batch, past + seq, 64"));
  const ValueId total = g.emit(Op::kGather, {shape, g.integer(1)}, {{key::kAxis, 0}});
  EXPECT_EQ(g.elements(total), "[past + seq]");
  const ValueId doubled = g.emit(Op::kMul, {total, g.integer(2)});
  EXPECT_EQ(g.elements(g.emit(Op::kDiv, {doubled, g.integer(2)})), "[past + seq]");
  const ValueId parts =
      g.emit(Op::kConcat, {g.emit(Op::kReshape, {total}, {{key::kShape, Shape{Expr(1)}}}), g.ints({-1})},
             {{key::kAxis, 0}});
  EXPECT_EQ(g.elements(parts), "[past + seq, -1]");
  EXPECT_EQ(g.elements(g.emit(Op::kReduceProd, {shape}, {{key::kKeepdims, 0}})),
            "[64*batch*past + 64*batch*seq]");
  EXPECT_EQ(g.graph.value(g.emit(Op::kGather, {shape, g.integer(-1)}, {{key::kAxis, 0}})).constant->size(),
            1);
}

// torch's expand(-1, ..): ConstantOfShape(1) * -1 == target ? 1 : target.
TEST(Elements, ExpandSentinelFolds) {
  GraphBuilder g;
  const ValueId target = g.emit(Op::kDims, {}, dims_of("batch, 2, 4, past + seq, 8"));
  const ValueId ones =
      g.emit(Op::kConstantOfShape, {g.ints({5})},
             {{key::kValue, Tensor::of<int64_t>(DType::kI64, {1}, std::vector<int64_t>{1})}});
  const ValueId is_sentinel = g.emit(Op::kEqual, {target, g.emit(Op::kMul, {ones, g.integer(-1)})});
  EXPECT_EQ(g.elements(is_sentinel), "[0, 0, 0, 0, 0]");
  EXPECT_EQ(g.elements(g.emit(Op::kWhere, {is_sentinel, ones, target})), "[batch, 2, 4, past + seq, 8]");
}

TEST(Elements, ComparisonsFoldOnlyWhereProvable) {
  GraphBuilder g;
  const ValueId size = g.emit(Op::kDims, {}, dims_of("seq"));
  EXPECT_EQ(g.elements(g.emit(Op::kEqual, {size, g.ints({-1})})), "[0]");
  EXPECT_EQ(g.elements(g.emit(Op::kGreaterOrEqual, {size, g.ints({0})})), "[1]");
  EXPECT_EQ(g.elements(g.emit(Op::kEqual, {size, g.ints({1})})), "?");
  EXPECT_EQ(g.elements(g.emit(Op::kLess, {size, g.ints({4})})), "?");
}

TEST(Elements, DivisionByZeroStaysUnknown) {
  GraphBuilder g;
  const ValueId size = g.emit(Op::kDims, {}, dims_of("seq"));
  EXPECT_EQ(g.elements(g.emit(Op::kDiv, {size, g.ints({0})})), "?");
  EXPECT_EQ(g.elements(g.emit(Op::kMod, {size, g.ints({0})})), "?");
}

TEST(Elements, KnownSizesBecomeOneNode) {
  GraphBuilder g;
  const ValueId size =
      g.emit(Op::kAdd, {g.emit(Op::kDims, {}, dims_of("past")), g.emit(Op::kDims, {}, dims_of("seq"))});
  g.output(size);
  g.graph.remove_dead();
  EXPECT_EQ(g.ops(), "Dims");
}

// -- limits

TEST(Limits, TensorsMadeOfSizesAlone) {
  GraphBuilder g;
  const Tensor zero = Tensor::zeros(DType::kF32, {1});
  try {
    g.emit(Op::kConstantOfShape, {}, {{key::kShape, test::shape_of("100000, 100000")}, {key::kValue, zero}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("max_generated_bytes"));
  }
  EXPECT_THROW(g.emit(Op::kExpand, {g.real(1)}, {{key::kShape, test::shape_of("4000000000")}}), Error);
  const ValueId axes = g.input("axes", "1099511627776", DType::kI64);
  EXPECT_THROW(g.emit(Op::kExpand, {g.real(1), axes}), Error);
  EXPECT_THROW(g.emit(Op::kTile, {g.reals({2}, {1, 2})}, {{key::kRepeats, test::shape_of("4000000000")}}),
               Error);
  EXPECT_THROW(g.emit(Op::kRange, {g.integer(0), g.integer(int64_t{1} << 40), g.integer(1)}), Error);
}

TEST(Limits, LargeConstantsAreNotBlownUp) {
  GraphBuilder g;
  const ValueId y = g.emit(Op::kExpand, {g.real(1)}, {{key::kShape, test::shape_of("1000, 1000")}});
  EXPECT_FALSE(g.graph.value(y).constant);
}

TEST(Views, OfLargeConstantsMoveNoBytes) {
  GraphBuilder g;
  const ValueId w = g.weight({100, 64});
  const ValueId turned = g.emit(Op::kTranspose, {w}, {{key::kPerm, std::vector<int64_t>{1, 0}}});
  ASSERT_TRUE(g.graph.value(turned).constant);
  EXPECT_TRUE(same_payload(*g.graph.value(w).constant, *g.graph.value(turned).constant));
  const auto parts = g.emit(Op::kSplit, {w}, {{key::kAxis, 1}, {key::kSizes, test::shape_of("16, 48")}}, 2);
  EXPECT_EQ(g.graph.value(parts[1]).constant->dims, (Dims{100, 48}));
  EXPECT_TRUE(same_payload(*g.graph.value(w).constant, *g.graph.value(parts[1]).constant));
  EXPECT_EQ(g.ops(), "");
}

}  // namespace
}  // namespace ark
