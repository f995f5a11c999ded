#include "importer/passes/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/ir/keys.h"
#include "importer/import.h"
#include "tests/fixtures.h"
#include "tests/importer/graph_builder.h"

namespace ark {
namespace {

using test::GraphBuilder;
using testing::HasSubstr;
using Ints = std::vector<int64_t>;

const Attributes kLastAxis{{key::kAxes, Ints{2}}, {key::kKeepdims, 1}};

ValueId row(GraphBuilder& g, float value) { return g.reals({8}, std::vector<float>(8, value)); }

// The pass changes the graph to `ops`, leaves it whole, and then finds nothing more to do.
void expect(GraphBuilder& g, bool (*pass)(Graph&), const std::string& ops) {
  EXPECT_TRUE(pass(g.graph));
  verify(g.graph, "test");
  g.graph.remove_dead();
  EXPECT_EQ(g.ops(), ops);
  EXPECT_FALSE(pass(g.graph)) << "not idempotent";
}
void expect_nothing(GraphBuilder& g, bool (*pass)(Graph&)) {
  const std::string before = g.ops();
  EXPECT_FALSE(pass(g.graph));
  EXPECT_EQ(g.ops(), before);
}

TEST(LayerNormPass, NineNodes) {
  for (const bool power : {true, false}) {
    GraphBuilder g;
    const ValueId x = g.input("x", "b, s, 8");
    const ValueId d = g.node(Op::kSub, {x, g.node(Op::kReduceMean, {x}, kLastAxis)});
    const ValueId square = power ? g.node(Op::kPow, {d, g.real(2)}) : g.node(Op::kMul, {d, d});
    const ValueId root =
        g.node(Op::kSqrt, {g.node(Op::kAdd, {g.node(Op::kReduceMean, {square}, kLastAxis), g.real(1e-5f)})});
    g.output(g.node(Op::kAdd, {g.node(Op::kMul, {g.node(Op::kDiv, {d, root}), row(g, 2)}), row(g, 3)}));
    expect(g, passes::fuse_norms, "LayerNorm");
    EXPECT_EQ(g.last().inputs.size(), 3u);
    EXPECT_EQ(g.last().inputs[0], x);
    EXPECT_FLOAT_EQ(static_cast<float>(g.last().attributes.get(key::kEpsilon)), 1e-5f);
  }
}

TEST(LayerNormPass, AnotherAxisIsLeftAlone) {
  GraphBuilder g;
  const Attributes first{{key::kAxes, Ints{1}}, {key::kKeepdims, 1}};
  const ValueId x = g.input("x", "b, s, 8");
  const ValueId d = g.node(Op::kSub, {x, g.node(Op::kReduceMean, {x}, first)});
  const ValueId root =
      g.node(Op::kSqrt,
             {g.node(Op::kAdd, {g.node(Op::kReduceMean, {g.node(Op::kMul, {d, d})}, first), g.real(1e-5f)})});
  g.output(g.node(Op::kDiv, {d, root}));
  expect_nothing(g, passes::fuse_norms);
}

TEST(DeadCodePass, StatisticsThatNothingReadsAreDropped) {
  for (const std::size_t read : {0, 1, 2}) {
    GraphBuilder g;
    const auto y = g.emit(Op::kLayerNorm, {g.input("x", "b, s, 8"), row(g, 2)},
                          {{key::kAxis, 2}, {key::kEpsilon, 1e-5}}, 3);
    g.output(y[0]);
    if (read > 0) g.output(y[read]);
    EXPECT_TRUE(passes::remove_dead_code(g.graph));
    verify(g.graph, "test");
    EXPECT_EQ(g.last().outputs.size(), read + 1);
    EXPECT_EQ(g.last().outputs.back(), g.graph.outputs.back());
    EXPECT_EQ(g.last().outputs.size() == 3 && g.last().outputs[1] != kNoValue, false);
    EXPECT_FALSE(passes::remove_dead_code(g.graph));
  }
}

// 300 rows of 256, stored in 16 bits: more than is computed at load.
ValueId narrow_table(GraphBuilder& g) {
  return g.graph.add_constant(make_constant(Tensor::zeros(DType::kF16, {300, 256}), "table"));
}

TEST(SinkWideningPass, ATableIsLookedUpAsItIsStored) {
  GraphBuilder g;
  const ValueId table = narrow_table(g);
  const ValueId wide = g.emit(Op::kCast, {table}, {{key::kTo, static_cast<int64_t>(DType::kF32)}});
  g.output(g.node(Op::kGather, {wide, g.input("ids", "b, s", DType::kI64)}, {{key::kAxis, 0}}));
  expect(g, passes::sink_widening, "Gather Cast");
  const Node& cast = g.last();
  EXPECT_EQ(cast.outputs[0], g.graph.outputs[0]);
  EXPECT_EQ(g.graph.value(cast.outputs[0]).dtype, DType::kF32);
  const Node* gather = g.graph.producer(cast.inputs[0]);
  ASSERT_TRUE(gather && gather->op == Op::kGather);
  EXPECT_TRUE(same_payload(*g.graph.value(gather->inputs[0]).constant, *g.graph.value(table).constant));
}

TEST(SinkWideningPass, NarrowingAndComputedTablesAreLeftAlone) {
  GraphBuilder g;
  const ValueId ids = g.input("ids", "b, s", DType::kI64), wide = g.weight({300, 256});
  const ValueId narrow = g.emit(Op::kCast, {wide}, {{key::kTo, static_cast<int64_t>(DType::kF16)}});
  g.output(g.node(Op::kGather, {narrow, ids}, {{key::kAxis, 0}}));
  const ValueId cast = g.emit(Op::kCast, {narrow_table(g)}, {{key::kTo, static_cast<int64_t>(DType::kF32)}});
  g.output(g.node(Op::kGather, {g.node(Op::kNeg, {cast}), ids}, {{key::kAxis, 0}}));
  expect_nothing(g, passes::sink_widening);
}

enum class Style { kReciprocal, kDivOne, kDivRoot, kRsqrt, kPower };

ValueId rms(GraphBuilder& g, ValueId x, Style style, ValueId square) {
  const ValueId mean = g.node(Op::kAdd, {g.node(Op::kReduceMean, {square}, kLastAxis), g.real(1e-6f)});
  if (style == Style::kRsqrt) return g.node(Op::kMul, {x, g.node(Op::kRsqrt, {mean})});
  if (style == Style::kPower) return g.node(Op::kMul, {x, g.node(Op::kPow, {mean, g.real(-0.5f)})});
  const ValueId root = g.node(Op::kSqrt, {mean});
  if (style == Style::kDivRoot) return g.node(Op::kDiv, {x, root});
  const ValueId inverse =
      style == Style::kReciprocal ? g.node(Op::kReciprocal, {root}) : g.node(Op::kDiv, {g.real(1), root});
  return g.node(Op::kMul, {inverse, x});
}

TEST(RmsNormPass, AllStyles) {
  for (const Style style :
       {Style::kReciprocal, Style::kDivOne, Style::kDivRoot, Style::kRsqrt, Style::kPower}) {
    GraphBuilder g;
    const ValueId x = g.input("x", "b, s, 8");
    g.output(g.node(Op::kMul, {row(g, 2), rms(g, x, style, g.node(Op::kPow, {x, g.real(2)}))}));
    expect(g, passes::fuse_norms, "RmsNorm");
    EXPECT_EQ(g.last().inputs.size(), 2u);
  }
}

TEST(RmsNormPass, CastsAroundTheStatisticsVanish) {
  GraphBuilder g;
  const ValueId x = g.input("x", "b, s, 8", DType::kF16);
  const ValueId wide = g.node(Op::kCast, {x}, {{key::kTo, 1}});
  const ValueId y = rms(g, wide, Style::kReciprocal, g.node(Op::kMul, {wide, wide}));
  const ValueId narrow = g.node(Op::kCast, {y}, {{key::kTo, 10}});
  const ValueId scale = g.emit(Op::kCast, {row(g, 2)}, {{key::kTo, 10}});
  g.output(g.node(Op::kMul, {scale, narrow}));
  expect(g, passes::fuse_norms, "RmsNorm");
  EXPECT_EQ(g.last().inputs[0], x);
}

TEST(RmsNormPass, ANormThatIsReadTwiceKeepsItsScaleApart) {
  GraphBuilder g;
  const ValueId x = g.input("x", "b, s, 8");
  const ValueId y = rms(g, x, Style::kDivRoot, g.node(Op::kMul, {x, x}));
  g.output(g.node(Op::kMul, {y, row(g, 2)}));
  g.output(y);
  expect(g, passes::fuse_norms, "RmsNorm Mul");
}

TEST(GeluPass, ErfInAnyOrder) {
  for (int order = 0; order < 3; ++order) {
    GraphBuilder g;
    const ValueId x = g.input("x", "b, 8");
    const ValueId t = g.node(Op::kErf, {order == 0 ? g.node(Op::kDiv, {x, g.real(std::sqrt(2.0f))})
                                                   : g.node(Op::kMul, {x, g.real(std::sqrt(0.5f))})});
    const ValueId one = g.node(Op::kAdd, {t, g.real(1)});
    if (order == 0) g.output(g.node(Op::kMul, {g.node(Op::kMul, {x, one}), g.real(0.5f)}));
    if (order == 1) g.output(g.node(Op::kMul, {g.node(Op::kMul, {g.real(0.5f), x}), one}));
    if (order == 2) g.output(g.node(Op::kMul, {x, g.node(Op::kMul, {one, g.real(0.5f)})}));
    expect(g, passes::fuse_gelu, "Gelu");
    EXPECT_EQ(g.last().attributes.get_or(key::kApproximate, ""), "none");
  }
}

ValueId tanh_gelu(GraphBuilder& g, ValueId x, float cubic) {
  const ValueId cube = g.node(Op::kPow, {x, g.real(3)});
  const ValueId sum = g.node(Op::kAdd, {x, g.node(Op::kMul, {g.real(cubic), cube})});
  const ValueId t = g.node(Op::kTanh, {g.node(Op::kMul, {g.real(0.79788456f), sum})});
  return g.node(Op::kMul, {g.node(Op::kMul, {g.real(0.5f), x}), g.node(Op::kAdd, {g.real(1), t})});
}

TEST(GeluPass, TanhWithItsCube) {
  GraphBuilder g;
  g.output(tanh_gelu(g, g.input("x", "b, 8"), 0.044715f));
  expect(g, passes::fuse_gelu, "Gelu");
  EXPECT_EQ(g.last().attributes.get_or(key::kApproximate, ""), "tanh");
}

TEST(GeluPass, AnotherPolynomialIsNoGelu) {
  GraphBuilder g;
  g.output(tanh_gelu(g, g.input("x", "b, 8"), 0.05f));
  expect_nothing(g, passes::fuse_gelu);
}

// The x inside may itself be a product that also stands outside.
TEST(GeluPass, FindsTheInnermostCommonValue) {
  GraphBuilder g;
  const ValueId x = g.node(Op::kMul, {g.input("a", "b, 8"), g.input("c", "b, 8")});
  g.output(tanh_gelu(g, x, 0.044715f));
  expect(g, passes::fuse_gelu, "Mul Gelu");
  EXPECT_EQ(g.last().inputs[0], x);
}

TEST(SiluPass, AndQuickGelu) {
  GraphBuilder g;
  const ValueId x = g.input("x", "b, 8");
  g.output(g.node(Op::kMul, {g.node(Op::kSigmoid, {x}), x}));
  g.output(g.node(Op::kMul, {x, g.node(Op::kSigmoid, {g.node(Op::kMul, {g.real(1.702f), x})})}));
  expect(g, passes::fuse_silu, "Silu QuickGelu");
}

TEST(SiluPass, OfAnotherValueIsLeftAlone) {
  GraphBuilder g;
  g.output(g.node(Op::kMul, {g.node(Op::kSigmoid, {g.input("x", "b, 8")}), g.input("y", "b, 8")}));
  expect_nothing(g, passes::fuse_silu);
}

TEST(TransposePass, TiedWeightsStayOneValue) {
  GraphBuilder g;
  const ValueId w = g.weight({100, 64});
  const ValueId x = g.emit(Op::kGather, {w, g.input("ids", "b, s", DType::kI64)}, {{key::kAxis, 0}});
  g.output(g.node(Op::kMatMul, {x, g.emit(Op::kTranspose, {w}, {{key::kPerm, Ints{1, 0}}})}));
  expect(g, passes::absorb_transposes, "Gather MatMul");
  EXPECT_EQ(g.last().inputs[1], w);
  EXPECT_EQ(g.last().attributes.get(key::kTransB), 1);
}

TEST(TransposePass, KeysOfAttention) {
  GraphBuilder g;
  const ValueId q = g.input("q", "b, 4, s, 8"), k = g.input("k", "b, 4, t, 8"),
                flat = g.input("f", "b, t, 4, 8");
  g.output(g.node(Op::kMatMul, {q, g.node(Op::kTranspose, {k}, {{key::kPerm, Ints{0, 1, 3, 2}}})}));
  g.output(g.node(Op::kMatMul, {q, g.node(Op::kTranspose, {flat}, {{key::kPerm, Ints{0, 2, 3, 1}}})}));
  expect(g, passes::absorb_transposes, "MatMul Transpose MatMul");
  EXPECT_EQ(g.shape(g.last().inputs[1]), "[b, 4, t, 8]");
}

TEST(MovementPass, InversePairsCancel) {
  GraphBuilder g;
  const ValueId x = g.input("x", "b, s, 4, 8");
  const ValueId there = g.node(Op::kTranspose, {x}, {{key::kPerm, Ints{0, 2, 1, 3}}});
  const ValueId back = g.node(Op::kTranspose, {there}, {{key::kPerm, Ints{0, 2, 1, 3}}});
  const ValueId flat = g.node(Op::kReshape, {back}, {{key::kShape, test::shape_of("b, s, 32")}});
  const ValueId again = g.node(Op::kReshape, {flat}, {{key::kShape, test::shape_of("b, s, 4, 8")}});
  const ValueId wide = g.node(Op::kCast, {again}, {{key::kTo, 11}});
  g.output(g.node(Op::kNeg, {g.node(Op::kCast, {wide}, {{key::kTo, 1}})}));
  expect(g, passes::cancel_movement, "Neg");
  EXPECT_EQ(g.last().inputs[0], x);
}

TEST(MovementPass, ANarrowingCastIsKept) {
  GraphBuilder g;
  const ValueId half = g.node(Op::kCast, {g.input("x", "4")}, {{key::kTo, 10}});
  g.output(g.node(Op::kCast, {half}, {{key::kTo, 1}}));
  expect_nothing(g, passes::cancel_movement);
}

TEST(DuplicatesPass, NodesAndConstants) {
  GraphBuilder g;
  const ValueId x = g.input("x", "4");
  const ValueId a = g.node(Op::kMul, {x, g.real(0.5f)}), b = g.node(Op::kMul, {x, g.real(0.5f)}),
                c = g.node(Op::kMul, {x, g.real(0.25f)});
  g.output(g.node(Op::kAdd, {g.node(Op::kAdd, {a, b}), c}));
  expect(g, passes::merge_duplicates, "Mul Mul Add Add");
}

TEST(DuplicatesPass, DifferentAttributesAreDifferent) {
  GraphBuilder g;
  const ValueId x = g.input("x", "2, 2");
  g.output(g.node(Op::kReduceSum, {x}, {{key::kAxes, Ints{0}}}));
  g.output(g.node(Op::kReduceSum, {x}, {{key::kAxes, Ints{1}}}));
  expect_nothing(g, passes::merge_duplicates);
}

// Token ids that index a table, and a score for each of its rows.
void add_logits(GraphBuilder& g) {
  const ValueId hidden =
      g.node(Op::kGather, {g.weight({32, 8}), g.input("ids", "batch, seq", DType::kI64)}, {{key::kAxis, 0}});
  g.output(g.node(Op::kMatMul, {hidden, g.weight({8, 32})}));
}

TEST(UnifyPass, AMaskIsAsLongAsPastAndSequence) {
  GraphBuilder g;
  add_logits(g);
  const ValueId mask = g.input("mask", "batch, 1, 1, total"), past = g.input("past", "batch, 4, past, 8");
  const ValueId k = g.node(Op::kConcat, {past, g.input("k", "batch, 4, seq, 8")}, {{key::kAxis, 2}});
  const ValueId scores = g.node(Op::kMatMul, {g.input("q", "batch, 4, seq, 8"), k}, {{key::kTransB, 1}});
  const ValueId y = g.node(Op::kAdd, {scores, mask});
  g.output(y);
  EXPECT_EQ(g.shape(y), "[batch, 4, seq, max(past + seq, total)]");
  EXPECT_TRUE(passes::unify_symbols(g.graph));
  EXPECT_EQ(g.shape(y), "[batch, 4, seq, past + seq]");
  EXPECT_EQ(g.shape(mask), "[batch, 1, 1, past + seq]");
  EXPECT_TRUE(g.graph.assumptions.empty());
  EXPECT_FALSE(passes::unify_symbols(g.graph));
}

// As torch's exporter writes a mask that each layer cuts to its own keys, whose lengths it names apart.
TEST(UnifyPass, PastsOfLayersThatCutOneMaskAreEqual) {
  for (const bool in_order : {true, false}) {  // the later name is that of the other layer
    GraphBuilder g;
    const ValueId mask = g.input("mask", "batch, 1, 1, total");
    add_logits(g);
    const Ints layers = in_order ? Ints{0, 1} : Ints{1, 0};
    ValueId pasts[2];
    for (const int64_t i : layers) {
      const std::string name = "past" + std::to_string(i);
      pasts[i] = g.input(name, "batch, 4, " + name + ", 8");
    }
    for (const ValueId past : pasts) {
      const ValueId k = g.node(Op::kConcat, {past, g.input("k", "batch, 4, seq, 8")}, {{key::kAxis, 2}});
      const ValueId scores = g.node(Op::kMatMul, {g.input("q", "batch, 4, seq, 8"), k}, {{key::kTransB, 1}});
      const Expr keys = (*g.graph.value(past).shape)[2] + Expr::symbol("seq");
      const ValueId cut = g.node(Op::kSlice, {mask},
                                 {{key::kAxes, Ints{3}},
                                  {key::kStarts, Shape{0}},
                                  {key::kEnds, Shape{min(keys, Expr::symbol("total"))}},
                                  {key::kSteps, Ints{1}}});
      g.output(g.node(Op::kAdd, {scores, cut}));
    }
    EXPECT_TRUE(passes::unify_symbols(g.graph));
    EXPECT_EQ(g.shape(pasts[0]), g.shape(pasts[1]));
    EXPECT_EQ(g.shape(mask), in_order ? "[batch, 1, 1, past0 + seq]" : "[batch, 1, 1, past1 + seq]");
    EXPECT_TRUE(g.graph.assumptions.empty());
  }
}

// One user is compared with many items.
TEST(UnifyPass, SizesThatBroadcastWhereNoTokensAreScoredStayApart) {
  GraphBuilder g;
  const ValueId table = g.weight({32, 8});
  const auto embedded = [&](const std::string& name, const std::string& dims) {
    const ValueId rows = g.node(Op::kGather, {table, g.input(name, dims, DType::kI64)}, {{key::kAxis, 0}});
    return g.node(Op::kReduceMean, {rows}, {{key::kAxes, Ints{1}}, {key::kKeepdims, 0}});
  };
  const ValueId y = g.node(Op::kMul, {embedded("user", "users, h"), embedded("item", "items, k")});
  g.output(g.node(Op::kReduceSum, {y}, {{key::kAxes, Ints{1}}, {key::kKeepdims, 0}}));
  EXPECT_FALSE(passes::unify_symbols(g.graph));
  EXPECT_EQ(g.shape(y), "[max(items, users), 8]");
}

TEST(UnifyPass, AHeadSizeByNameBecomesItsNumber) {
  GraphBuilder g;
  const ValueId past = g.input("past", "batch, 2, past, kv_cache_dim");
  g.output(g.node(Op::kConcat, {past, g.input("k", "batch, 2, seq, 16")}, {{key::kAxis, 2}}));
  EXPECT_TRUE(passes::unify_symbols(g.graph));
  EXPECT_EQ(g.shape(past), "[batch, 2, past, 16]");
}

TEST(UnifyPass, WhatTheDataDecidesIsNoName) {
  GraphBuilder g;
  const ValueId found = g.node(Op::kNonZero, {g.input("x", "n")});
  const ValueId flat =
      g.node(Op::kReshape, {found}, {{key::kShape, Shape{(*g.graph.value(found).shape)[1]}}});
  g.output(g.node(Op::kMul, {flat, g.input("y", "m", DType::kI64)}));
  EXPECT_FALSE(passes::unify_symbols(g.graph));
}

TEST(UnifyPass, ATableLengthIsNotAssumed) {
  GraphBuilder g;
  g.input("x", "seq");
  g.graph.assumptions.emplace_back(Expr::parse("min(seq, 64)"), Expr::parse("seq"));
  EXPECT_FALSE(passes::unify_symbols(g.graph));
  EXPECT_EQ(g.graph.assumptions.size(), 1u);
}

TEST(FoldPass, SettlesSlicesOnceSizesAreKnown) {
  GraphBuilder g;
  const ValueId x = g.input("x", "batch, past + seq, 8");
  const ValueId start = g.emit(Op::kDims, {}, {{key::kValues, test::shape_of("total - seq")}}),
                end = g.emit(Op::kDims, {}, {{key::kValues, test::shape_of("total")}});
  g.input("mask", "batch, total");
  const ValueId y = g.onnx("Slice", {x, start, end, g.ints({1})})[0];
  g.output(y);
  g.input("past", "past");
  g.graph.assumptions.emplace_back(Expr::symbol("total"), Expr::parse("past + seq"));
  g.input("seq", "seq");
  EXPECT_TRUE(passes::unify_symbols(g.graph));
  EXPECT_TRUE(passes::fold_constants(g.graph));
  EXPECT_EQ(g.shape(y), "[batch, seq, 8]");
  EXPECT_FALSE(passes::fold_constants(g.graph));
}

// Whatever the passes leave, they leave alone when run again.
TEST(Passes, AreIdempotentOnEveryFixture) {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::fixtures())) {
    const auto file = entry.path() / "model.onnx";
    if (!std::filesystem::exists(file)) continue;
    Graph graph;
    try {
      graph = import_model(file);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kUnsupported) << e.what();
      continue;
    }
    const std::string once = graph.str();
    run_passes(graph);
    EXPECT_EQ(graph.str(), once) << file;
    ++seen;
  }
  EXPECT_GE(seen, 40);
}

}  // namespace
}  // namespace ark
