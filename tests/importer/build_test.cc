#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/ir/keys.h"
#include "importer/import.h"
#include "tests/fixtures.h"
#include "tests/importer/proto.h"

namespace ark {
namespace {

using test::error_of;
using test::graph_attribute;
using test::kBool;
using test::kF32;
using test::kI64;
using test::Names;
using test::node;
using test::Proto;
using test::value_info;
using testing::HasSubstr;

Graph build(const Proto& model, const ImportOptions& options = {}) {
  return build_graph(test::parse(model), options);
}
Graph build(const test::GraphParts& parts) { return build(test::model(test::graph(parts))); }
std::string refused(const test::GraphParts& parts, Code code = Code::kBadModel) {
  return error_of(code, [&] { build(parts); });
}
std::vector<std::string> ops(const Graph& g) {
  std::vector<std::string> names;
  for (const Node& n : g.nodes)
    if (!n.removed) names.emplace_back(name_of(n.op));
  return names;
}
std::string output_type(const Graph& g, std::size_t i = 0) {
  const Value& v = g.value(g.outputs.at(i));
  return std::string(name_of(v.dtype)) + (v.shape ? str(*v.shape) : "[?]");
}

const Proto kX = value_info("x", kF32, {"batch", "8"});
const Proto kY = value_info("y", kF32, {});

TEST(Build, EveryFixtureThatIsNotRefusedByName) {
  int built = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::fixtures())) {
    const auto path = entry.path() / "model.onnx";
    if (!std::filesystem::exists(path)) continue;
    try {
      const Graph g = build_graph(onnx::parse_model(path));
      for (ValueId id : g.outputs) EXPECT_TRUE(g.value(id).shape) << path << " " << g.value(id).name;
      ++built;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kUnsupported) << path << ": " << e.what();
    }
  }
  EXPECT_GE(built, 30);
}

TEST(Build, SymbolicSizes) {
  const auto shapes = [](const std::vector<Names>& dims, int dtype = kI64) {
    test::GraphParts parts{.nodes = {node("Neg", {"i0"}, {"y"})}, .outputs = {value_info("y", dtype, {})}};
    for (std::size_t i = 0; i < dims.size(); ++i)
      parts.inputs.push_back(value_info("i" + std::to_string(i), dtype, dims[i]));
    const Graph g = build(parts);
    std::vector<std::string> texts;
    for (ValueId id : g.inputs) texts.push_back(str(*g.value(id).shape));
    return texts;
  };
  using testing::ElementsAre;
  EXPECT_THAT(shapes({{"batch", "8"}, {"batch", "-1"}, {"", ""}}),
              ElementsAre("[batch, 8]", "[batch, i1.1]", "[i2.0, i2.1]"));
  EXPECT_THAT(shapes({{"batch", "8"}, {"1", "batch"}, {"batch", "batch"}}, kF32),
              ElementsAre("[batch, 8]", "[1, batch_2]", "[batch_3, batch_3]"))
      << "where nothing is an integer, one name may stand for 1 and n";
  EXPECT_THAT(shapes({{"past + seq"}, {"past", "seq"}, {"seq + past"}}),
              ElementsAre("[past + seq]", "[past, seq]", "[past + seq]"));
  EXPECT_THAT(shapes({{"past + other"}, {"past"}}), ElementsAre("[past___other]", "[past]"))
      << "no input is sized 'other'";
  EXPECT_THAT(shapes({{"a-b"}, {"a"}, {"b"}}), ElementsAre("[a_b]", "[a]", "[b]")) << "could be negative";
  EXPECT_THAT(shapes({{"a/b"}, {"a b"}, {"_1"}}), ElementsAre("[a_b]", "[a_b_2]", "[_1]"))
      << "different names stay different";
}

TEST(Build, UnsortedNodesAreSorted) {
  const Graph g = build(
      {.nodes = {node("Neg", {"a"}, {"y"}), node("Abs", {"x"}, {"a"})}, .inputs = {kX}, .outputs = {kY}});
  EXPECT_THAT(ops(g), testing::ElementsAre("Abs", "Neg"));
  EXPECT_EQ(output_type(g), "f32[batch, 8]");
}

TEST(Build, NamesAreAssignedOnce) {
  EXPECT_THAT(
      refused(
          {.nodes = {node("Neg", {"y"}, {"a"}), node("Neg", {"a"}, {"y"})}, .inputs = {kX}, .outputs = {kY}}),
      HasSubstr("cycle"));
  EXPECT_THAT(
      refused(
          {.nodes = {node("Neg", {"x"}, {"y"}), node("Abs", {"x"}, {"y"})}, .inputs = {kX}, .outputs = {kY}}),
      HasSubstr("'y' is produced twice"));
  EXPECT_THAT(refused({.nodes = {node("Neg", {"x"}, {"x"})}, .inputs = {kX}, .outputs = {kX}}),
              HasSubstr("'x' is produced twice"));
  EXPECT_THAT(refused({.nodes = {node("Neg", {"nothing"}, {"y"})}, .inputs = {kX}, .outputs = {kY}}),
              HasSubstr("reads 'nothing', which nothing produces"));
  EXPECT_THAT(refused({.inputs = {kX}, .outputs = {kY}}),
              HasSubstr("graph output 'y' is produced by no node"));
}

TEST(Build, ControlCharactersOfNamesAreEscaped) {
  const std::string message = refused({.nodes = {node("Neg", {"evil\n\x1b[31m"}, {"y"})}, .outputs = {kY}});
  EXPECT_THAT(message, HasSubstr("evil\\n\\x1b[31m"));
}

TEST(Build, UnknownOperatorNamesNodeDomainAndOpset) {
  EXPECT_THAT(
      refused({.nodes = {node("Frobnicate", {"x"}, {"y"})}, .inputs = {kX}, .outputs = {kY}},
              Code::kUnsupported),
      testing::AllOf(HasSubstr("n_y (Frobnicate)"), HasSubstr("domain ai.onnx"), HasSubstr("opset 17")));
}

TEST(Build, InitializersThatAreInputsAreConstants) {
  const Graph g = build({.nodes = {node("Add", {"x", "w"}, {"y"})},
                         .initializers = {test::tensor("w", {1}, kF32, test::raw<float>({2}))},
                         .inputs = {kX, value_info("w", kF32, {"1"})},
                         .outputs = {kY}});
  ASSERT_EQ(g.inputs.size(), 1u);
  EXPECT_EQ(g.value(g.inputs[0]).name, "x");
}

TEST(Build, OtherKindsOfValuesAreRefusedOnlyIfUsed) {
  const Proto sequence = Proto().text(1, "s").message(2, Proto().message(4, Proto()));
  build({.nodes = {node("Neg", {"x"}, {"y"})}, .inputs = {kX, sequence}, .outputs = {kY}});
  EXPECT_THAT(refused({.nodes = {node("Neg", {"s"}, {"y"})}, .inputs = {sequence}, .outputs = {kY}},
                      Code::kUnsupported),
              HasSubstr("'s', which is a value of kind sequence"));
}

TEST(Build, DeclaredOutputTypeMustHold) {
  EXPECT_THAT(
      refused({.nodes = {node("Neg", {"x"}, {"y"})}, .inputs = {kX}, .outputs = {value_info("y", kI64, {})}}),
      HasSubstr("declared i64 but computed as f32"));
}

TEST(Build, OutputNamesSurviveSharedValues) {
  const Graph g = build({.nodes = {node("Identity", {"x"}, {"y"})}, .inputs = {kX}, .outputs = {kY, kX}});
  EXPECT_THAT(g.output_names, testing::ElementsAre("y", "x"));
}

// -- functions

Proto function(const std::string& name, const Names& inputs, const Names& outputs,
               const std::vector<Proto>& nodes) {
  Proto f;
  f.text(1, name).text(10, "local").message(9, test::opset("", 17)).message(9, test::opset("local", 1));
  for (const auto& i : inputs) f.text(4, i);
  for (const auto& o : outputs) f.text(5, o);
  for (const auto& n : nodes) f.message(7, n);
  return f;
}
Proto reference(const std::string& name, const std::string& to, int type) {
  return Proto().text(1, name).text(21, to).varint(20, type);
}

TEST(Functions, AreInlinedWithTheirAttributes) {
  const Proto inner =
      function("Soft", {"a"}, {"b"}, {node("Softmax", {"a"}, {"b"}, {reference("axis", "dim", 2)})})
          .text(6, "dim");
  const Proto outer =
      function("Outer", {"a"}, {"b"},
               {node("Neg", {"a"}, {"n"}), node("Soft", {"n"}, {"b"}, {reference("dim", "d", 2)}, "local")})
          .text(6, "d");
  const Proto call = node("Outer", {"x"}, {"y"}, {test::int_attribute("d", 0)}, "local");
  const Graph g =
      build(test::model(test::graph({.nodes = {call}, .inputs = {kX}, .outputs = {kY}}), {inner, outer}));
  EXPECT_THAT(ops(g), testing::ElementsAre("Neg", "Softmax"));
  EXPECT_EQ(g.nodes.back().attributes.get(key::kAxis), 0);
}

TEST(Functions, BillionLaughsAreCountedBeforeTheyAreExpanded) {
  std::vector<Proto> functions = {function("f0", {"a"}, {"b"}, {node("Neg", {"a"}, {"b"})})};
  for (int i = 1; i <= 40; ++i) {
    const std::string callee = "f" + std::to_string(i - 1);
    functions.push_back(
        function("f" + std::to_string(i), {"a"}, {"b"},
                 {node(callee, {"a"}, {"c"}, {}, "local"), node(callee, {"c"}, {"b"}, {}, "local")}));
  }
  const Proto m = test::model(
      test::graph({.nodes = {node("f40", {"x"}, {"y"}, {}, "local")}, .inputs = {kX}, .outputs = {kY}}),
      functions);
  EXPECT_THAT(error_of(Code::kBadModel, [&] { build(m); }), HasSubstr("max_function_nodes"));
}

TEST(Functions, RecursionAndDepthAreRefused) {
  const Proto f = function("f", {"a"}, {"b"}, {node("f", {"a"}, {"b"}, {}, "local")});
  const auto call = [](const std::string& name) {
    return test::graph({.nodes = {node(name, {"x"}, {"y"}, {}, "local")}, .inputs = {kX}, .outputs = {kY}});
  };
  EXPECT_THAT(error_of(Code::kBadModel, [&] { build(test::model(call("f"), {f})); }),
              HasSubstr("calls itself"));
  std::vector<Proto> chain = {function("f0", {"a"}, {"b"}, {node("Neg", {"a"}, {"b"})})};
  for (int i = 1; i <= 10000; ++i)
    chain.push_back(function("f" + std::to_string(i), {"a"}, {"b"},
                             {node("f" + std::to_string(i - 1), {"a"}, {"b"}, {}, "local")}));
  EXPECT_THAT(error_of(Code::kBadModel, [&] { build(test::model(call("f10000"), chain)); }),
              HasSubstr("max_nesting"));
}

// -- control flow

TEST(ControlFlow, IfCapturesOuterValues) {
  const auto branch = [](const std::string& op) {
    return test::graph({.nodes = {node(op, {"x"}, {"r"})}, .outputs = {value_info("r", kF32, {})}});
  };
  const Proto n =
      node("If", {"c"}, {"y"},
           {graph_attribute("then_branch", branch("Neg")), graph_attribute("else_branch", branch("Abs"))});
  const Graph g = build({.nodes = {n}, .inputs = {value_info("c", kBool, {}), kX}, .outputs = {kY}});
  EXPECT_THAT(ops(g), testing::ElementsAre("If"));
  EXPECT_EQ(output_type(g), "f32[batch, 8]");
  EXPECT_EQ(g.nodes[0].subgraphs.at(0)->captured.size(), 1u);
}

TEST(ControlFlow, ConstantConditionInlinesItsBranch) {
  const auto branch = [](const std::string& op) {
    return test::graph({.nodes = {node(op, {"x"}, {"r"})}, .outputs = {value_info("r", kF32, {})}});
  };
  const Proto n =
      node("If", {"c"}, {"y"},
           {graph_attribute("then_branch", branch("Neg")), graph_attribute("else_branch", branch("Abs"))});
  const Graph g = build({.nodes = {n},
                         .initializers = {test::tensor("c", {}, kBool, std::string(1, '\1'))},
                         .inputs = {kX},
                         .outputs = {kY}});
  EXPECT_THAT(ops(g), testing::ElementsAre("Neg"));
}

Proto counting_loop(const std::string& trips, const std::vector<Proto>& body_nodes,
                    const std::string& result) {
  std::vector<Proto> nodes = body_nodes;
  nodes.push_back(node("Identity", {"go"}, {"go_on"}));
  const Proto body = test::graph(
      {.nodes = nodes,
       .inputs = {value_info("i", kI64, {}), value_info("go", kBool, {}), value_info("s", kF32, {})},
       .outputs = {value_info("go_on", kBool, {}), value_info("t", kF32, {})}});
  return node("Loop", {trips, "", "x"}, {result}, {graph_attribute("body", body)});
}

TEST(ControlFlow, LoopStateOfOneShapeKeepsIt) {
  const Graph g = build({.nodes = {counting_loop("m", {node("Neg", {"s"}, {"t"})}, "y")},
                         .initializers = {test::scalar_tensor("m", 10)},
                         .inputs = {kX},
                         .outputs = {kY}});
  EXPECT_EQ(output_type(g), "f32[batch, 8]");
}

TEST(ControlFlow, LoopStateThatGrowsHasNoKnownSize) {
  const Proto grow = node("Concat", {"s", "s"}, {"t"}, {test::int_attribute("axis", 0)});
  const Graph g = build({.nodes = {counting_loop("m", {grow}, "y")},
                         .initializers = {test::scalar_tensor("m", 10)},
                         .inputs = {kX},
                         .outputs = {kY}});
  const Graph& body = *g.nodes.at(0).subgraphs.at(0);
  EXPECT_EQ(body.value(body.inputs[2]).shape->at(1), Expr(8));
  EXPECT_FALSE(body.value(body.inputs[2]).shape->at(0) == Expr::symbol("batch"));
  EXPECT_EQ(g.value(g.outputs[0]).shape->at(1), Expr(8));
  EXPECT_FALSE(g.value(g.outputs[0]).shape->at(0) == Expr::symbol("batch"));
}

TEST(ControlFlow, ConstantTripCountsMultiplyAndAreLimited) {
  EXPECT_THAT(refused({.nodes = {counting_loop("m", {node("Neg", {"s"}, {"t"})}, "y")},
                       .initializers = {test::scalar_tensor("m", 2'000'000'000)},
                       .inputs = {kX},
                       .outputs = {kY}}),
              HasSubstr("max_loop_trips"));
  const Proto inner_body = test::graph(
      {.nodes = {node("Neg", {"u"}, {"v"}), node("Identity", {"go2"}, {"go3"})},
       .inputs = {value_info("k", kI64, {}), value_info("go2", kBool, {}), value_info("u", kF32, {})},
       .outputs = {value_info("go3", kBool, {}), value_info("v", kF32, {})}});
  const Proto inner = node("Loop", {"m", "", "s"}, {"t"}, {graph_attribute("body", inner_body)});
  EXPECT_THAT(refused({.nodes = {counting_loop("m", {inner}, "y")},
                       .initializers = {test::scalar_tensor("m", 2000)},
                       .inputs = {kX},
                       .outputs = {kY}}),
              HasSubstr("inside of 2000 trips"));
}

TEST(ControlFlow, DeepNestingIsRefused) {
  const Proto leaf =
      test::graph({.nodes = {node("Neg", {"x"}, {"r"})}, .outputs = {value_info("r", kF32, {})}});
  const auto nested = [&](int depth) {
    Proto inner = leaf;
    for (int i = 0; i < depth; ++i) {
      const Proto n = node("If", {"c"}, {"r"},
                           {graph_attribute("then_branch", inner), graph_attribute("else_branch", leaf)});
      inner = test::graph({.nodes = {n}, .outputs = {value_info("r", kF32, {})}});
    }
    return inner.message(11, kX).message(11, value_info("c", kBool, {}));
  };
  build(test::model(nested(20)));
  for (int depth : {100, 2000})
    EXPECT_THAT(error_of(Code::kBadModel, [&] { build(test::model(nested(depth))); }),
                HasSubstr("max_nesting"));
}

}  // namespace
}  // namespace ark
