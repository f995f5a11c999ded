// What is nearly a decoder must not pass for one: exported graphs with one thing changed.
#include <gtest/gtest.h>

#include <array>

#include "base/ir/keys.h"
#include "importer/decoder.h"
#include "importer/import.h"
#include "importer/op_importer.h"
#include "tests/fixtures.h"
#include "tests/importer/decoder/decoder_cases.h"

namespace ark::test {
namespace {

Graph llama() { return import_model(fixtures() / "llama-optimum"); }

// Changes the nodes of one operator; fails the test if there is none.
template <typename F>
void change(Graph& graph, Op op, F&& f) {
  int changed = 0;
  for (Node& node : graph.nodes)
    if (!node.removed && node.op == op) changed += f(node);
  ASSERT_GT(changed, 0);
}

NotRecognised refusal(const Graph& graph) {
  auto result = recognise_decoder(graph, 256);
  if (auto* refused = std::get_if<NotRecognised>(&result)) return *refused;
  ADD_FAILURE() << "recognised";
  return {};
}

TEST(Proof, AMaskOffByOneIsRefused) {
  Graph graph = llama();
  change(graph, Op::kLessOrEqual, [](Node& node) { return node.op = Op::kLess, 1; });
  const NotRecognised refused = refusal(graph);
  EXPECT_NE(refused.reason.find("hides"), std::string::npos) << refused.reason;
  EXPECT_FALSE(refused.node.empty());
}

TEST(Proof, AMaskThatShowsTheFutureIsRefused) {
  Graph graph = llama();
  change(graph, Op::kLessOrEqual, [](Node& node) { return node.op = Op::kGreaterOrEqual, 1; });
  EXPECT_FALSE(refusal(graph).node.empty());
}

TEST(Proof, SoftmaxOverQueriesIsRefused) {
  Graph graph = llama();
  change(graph, Op::kSoftmax, [](Node& node) { return node.attributes.set(key::kAxis, 2), 1; });
  const NotRecognised refused = refusal(graph);
  EXPECT_NE(refused.reason.find("not the context"), std::string::npos) << refused.reason;
  EXPECT_NE(refused.node.find("Softmax"), std::string::npos) << refused.node;
}

TEST(Proof, APastBehindTheNewTokensIsRefused) {
  Graph graph = llama();
  change(graph, Op::kConcat, [&](Node& node) {
    const bool cache =
        std::find(graph.inputs.begin(), graph.inputs.end(), node.inputs[0]) != graph.inputs.end();
    if (cache) std::swap(node.inputs[0], node.inputs[1]);
    return cache;
  });
  const NotRecognised refused = refusal(graph);
  EXPECT_NE(refused.reason.find("joins tokens"), std::string::npos) << refused.reason;
}

TEST(Proof, PositionsThatDependOnTheBatchRowAreRefused) {
  Graph graph = llama();
  std::string why;
  const auto signature = find_signature(graph, &why);
  ASSERT_TRUE(signature && signature->positions.size() == 1) << why;
  const ValueId positions = graph.inputs[signature->positions[0]];
  const Expr batch = graph.value(positions).shape->front();
  const auto count = graph.nodes.size();
  ValueId rows = emit(graph, Op::kRange, "rows", {},
                      {{key::kStart, Shape{0}}, {key::kLimit, Shape{batch}}, {key::kDelta, Shape{1}}})[0];
  rows = emit(graph, Op::kReshape, "rows", {rows}, {{key::kShape, Shape{batch, 1}}})[0];
  const ValueId sum = emit(graph, Op::kAdd, "rows", {positions, rows})[0];
  for (std::size_t i = 0; i < count; ++i)
    for (ValueId& id : graph.nodes[i].inputs)
      if (id == positions) id = sum;
  graph.sort();
  const NotRecognised refused = refusal(graph);
  EXPECT_NE(refused.reason.find("no function of the position"), std::string::npos) << refused.reason;
}

TEST(Proof, AMaskBehindThousandsOfNodesIsRefusedWithoutFillingTheStack) {
  for (const char* name : {"llama-optimum", "gpt2-no-past"}) {
    Graph graph = import_model(fixtures() / name);
    std::string why;
    const auto signature = find_signature(graph, &why);
    ASSERT_TRUE(signature && signature->mask) << why;
    const ValueId mask = graph.inputs[*signature->mask];
    const auto count = graph.nodes.size();
    ValueId deep = mask;
    for (int i = 0; i < 20'000; ++i) deep = emit(graph, Op::kAbs, "deep", {deep})[0];
    for (std::size_t i = 0; i < count; ++i)
      for (ValueId& id : graph.nodes[i].inputs)
        if (id == mask) id = deep;
    graph.sort();
    const NotRecognised refused = refusal(graph);
    EXPECT_NE(refused.reason.find("more than 500 nodes"), std::string::npos)
        << name << ": " << refused.reason;
  }
}

TEST(Proof, CachesThatStoreAnotherLayersKeysAreRefused) {
  Graph graph = llama();
  std::string why;
  const auto signature = find_signature(graph, &why);
  ASSERT_TRUE(signature && signature->caches.size() >= 3) << why;
  // The first layer's keys are stored as they are before rotation, so what comes back is not what attention
  // used.
  const Node* concat = graph.producer(graph.outputs[signature->caches[0].output]);
  ASSERT_TRUE(concat && concat->op == Op::kConcat);
  const ValueId fresh = concat->inputs[1];
  const ValueId twice = emit(graph, Op::kAdd, "twice", {fresh, fresh})[0];
  const ValueId stored = emit(graph, Op::kConcat, "stored", {concat->inputs[0], twice}, {{key::kAxis, 2}})[0];
  graph.outputs[signature->caches[0].output] = stored;
  graph.sort();
  const NotRecognised refused = refusal(graph);
  EXPECT_NE(refused.reason.find("reads another feature"), std::string::npos) << refused.reason;
}

TEST(Proof, AMaskOfMinusTenThousandInBfloat16IsAMask) {
  Graph graph = import_model(fixtures() / "llama-eager");
  const ValueId low = graph.add_constant(make_constant(Tensor::of<float>(DType::kF32, {}, {{-9984.0f}})));
  change(graph, Op::kWhere, [&](Node& node) {
    int changed = 0;
    for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
      const ConstantPtr& c = graph.value(node.inputs[i]).constant;
      if (!c || c->size() != 1 || !is_floating(c->dtype) || !(materialise(*c).real(0) < -1e4)) continue;
      node.inputs[i] = low, ++changed;
    }
    return changed;
  });
  const auto result = recognise_decoder(graph, 256);
  EXPECT_TRUE(std::holds_alternative<DecoderModel>(result))
      << std::get<NotRecognised>(result).node << ": " << std::get<NotRecognised>(result).reason;
}

// Whether the context is longer than `threshold`.
ValueId beyond(Graph& graph, const DecoderSignature& signature, int64_t threshold) {
  const auto& cache = signature.caches.at(0);
  const Shape& shape = *graph.value(graph.outputs[cache.output]).shape;
  const Expr total = shape.at(static_cast<std::size_t>(cache.sequence_axis));
  const ValueId limit =
      graph.add_constant(make_constant(Tensor::of<int64_t>(DType::kI64, {}, {{threshold}})));
  const ValueId length =
      emit(graph, Op::kDims, "length", {}, {{key::kValues, Shape{total}}, {key::kScalar, 1}})[0];
  return emit(graph, Op::kGreater, "far", {length, limit})[0];
}

// The logits are scaled once the context is longer than `threshold`.
Graph scaled_beyond(int64_t threshold) {
  Graph graph = llama();
  std::string why;
  const auto signature = find_signature(graph, &why);
  const auto number = [&](float x) {
    return graph.add_constant(make_constant(Tensor::of<float>(DType::kF32, {}, {{x}})));
  };
  const ValueId far = beyond(graph, signature.value(), threshold);
  const ValueId scale = emit(graph, Op::kWhere, "scale", {far, number(2), number(1)})[0];
  ValueId& logits = graph.outputs[signature->logits];
  logits = emit(graph, Op::kMul, "scaled", {logits, scale})[0];
  graph.sort();
  return graph;
}

TEST(Proof, AScaleThatChangesAtALengthIsRefused) {
  for (const int64_t threshold : {8, 100, 255}) {
    const NotRecognised refused = refusal(scaled_beyond(threshold));
    EXPECT_NE(refused.reason.find("depends on the lengths"), std::string::npos) << refused.reason;
  }
  const auto never = recognise_decoder(scaled_beyond(256), 256);
  EXPECT_TRUE(std::holds_alternative<DecoderModel>(never));
}

// An If by the context's length around the logits: negative beyond `threshold`, untouched before.
Graph branched_beyond(int64_t threshold) {
  Graph graph = llama();
  std::string why;
  const auto signature = find_signature(graph, &why);
  ValueId& logits = graph.outputs[signature.value().logits];
  const Value whole = graph.value(logits);
  const auto branch = [&](Op op) {
    auto body = std::make_shared<Graph>();
    const ValueId inner = body->add_value("inner", whole.dtype, whole.shape);
    body->captured.emplace_back(logits, inner);
    body->outputs = {emit(*body, op, "inside", {inner})[0]};
    body->output_names = {"out"};
    return body;
  };
  const ValueId far = beyond(graph, *signature, threshold);
  const ValueId result = graph.add_value("branched", whole.dtype, whole.shape);
  const NodeId made = graph.add_node(Op::kIf, "length/If (If)", {far}, {result});
  graph.node(made).subgraphs = {branch(Op::kNeg), branch(Op::kAbs)};
  logits = result;
  graph.sort();
  return graph;
}

// The same with the branch's operator in its place.
Graph ending_in(Op op) {
  Graph graph = llama();
  std::string why;
  const auto signature = find_signature(graph, &why);
  ValueId& logits = graph.outputs[signature.value().logits];
  logits = emit(graph, op, "inside", {logits})[0];
  return graph;
}

TEST(Recognise, ABranchThatAllSequencesTakeStandsForItsIf) {
  for (const auto& [threshold, op] : {std::pair{int64_t{64}, Op::kAbs}, std::pair{int64_t{0}, Op::kNeg}}) {
    const Graph graph = branched_beyond(threshold);
    const std::string before = graph.str();
    const auto result = recognise_decoder(graph, 64), plain = recognise_decoder(ending_in(op), 64);
    ASSERT_TRUE(std::holds_alternative<DecoderModel>(result))
        << std::get<NotRecognised>(result).node << ": " << std::get<NotRecognised>(result).reason;
    const auto& model = std::get<DecoderModel>(result);
    EXPECT_EQ(model.tokens.str(), std::get<DecoderModel>(plain).tokens.str());
    EXPECT_EQ(model.max_positions, 64);
    EXPECT_EQ(graph.str(), before) << "the plain graph was changed";
  }
  const std::string at_65 =
      "takes its other branch from 65 tokens on: sequences of up to 64 (--max-model-len 64)";
  for (const int64_t length : {65, 0}) {
    const Graph graph = branched_beyond(64);
    const std::string before = graph.str();
    const auto refused = recognise_decoder(graph, length);
    ASSERT_TRUE(std::holds_alternative<NotRecognised>(refused));
    EXPECT_NE(std::get<NotRecognised>(refused).reason.find(at_65), std::string::npos)
        << std::get<NotRecognised>(refused).reason;
    EXPECT_EQ(graph.str(), before) << "the plain graph was changed";
  }
}

// What torch's exporter makes of a mask's rows that it slices and broadcasts: as many as tokens, where there are any.
TEST(Recognise, SizesThatDifferWithoutTokensOnlyAreOne) {
  Graph graph = llama();
  std::string why;
  const auto signature = find_signature(graph, &why);
  ValueId& logits = graph.outputs[signature.value().logits];
  Shape shape = *graph.value(logits).shape;
  shape[1] = max(shape[1], 1);
  ASSERT_FALSE(shape[1].as_symbol());
  logits = emit(graph, Op::kReshape, "view", {logits}, {{key::kShape, shape}})[0];
  const auto result = recognise_decoder(graph, 64);
  ASSERT_TRUE(std::holds_alternative<DecoderModel>(result))
      << std::get<NotRecognised>(result).node << ": " << std::get<NotRecognised>(result).reason;
  expect_numbers(std::get<DecoderModel>(result), fixtures() / "llama-optimum");
}

TEST(Recognise, ProductsWrittenAsEinsumAreFollowed) {
  Graph graph = llama();
  change(graph, Op::kMatMul, [&](Node& node) {
    const std::size_t a = graph.value(node.inputs[0]).shape->size(),
                      b = graph.value(node.inputs[1]).shape->size();
    const bool transposed = node.attributes.get_or(key::kTransB, 0);
    const bool heads = a == 4 && b == 4, projection = a == 3 && b == 2;
    if (!(heads || projection) || node.inputs.size() != 2) return 0;
    node.op = Op::kEinsum;
    node.attributes = {{key::kEquation, heads
                                            ? std::string(transposed ? "bhid,bhjd->bhij" : "bhid,bhdj->bhij")
                                            : std::string(transposed ? "bsk,nk->bsn" : "bsk,kn->bsn")}};
    return 1;
  });
  auto result = recognise_decoder(graph, 64);
  ASSERT_TRUE(std::holds_alternative<DecoderModel>(result))
      << std::get<NotRecognised>(result).node << ": " << std::get<NotRecognised>(result).reason;
  expect_numbers(std::get<DecoderModel>(result), fixtures() / "llama-optimum");
}

// As Phi-MoE writes rotary: rows for all positions up to the largest, of which each token takes its own.
TEST(Recognise, TablesAsLongAsTheLargestPositionAreFollowed) {
  Graph graph = llama();
  std::string why;
  const auto signature = find_signature(graph, &why);
  ASSERT_TRUE(signature && signature->positions.size() == 1) << why;
  const ValueId positions = graph.inputs[signature->positions[0]];
  const auto count = graph.nodes.size();
  const auto number = [&](int64_t n) {
    return graph.add_constant(make_constant(Tensor::of<int64_t>(DType::kI64, {}, std::array{n}), "number"));
  };
  const ValueId largest = emit(graph, Op::kReduceMax, "largest", {positions}, {{key::kKeepdims, 0}})[0];
  const ValueId limit = emit(graph, Op::kAdd, "limit", {largest, number(1)})[0];
  const ValueId range = emit(graph, Op::kRange, "range", {number(0), limit, number(1)})[0];
  const Expr size = graph.value(range).shape->front();
  const ValueId table = emit(graph, Op::kReshape, "table", {range}, {{key::kShape, Shape{size, 1}}})[0];
  const ValueId rows = emit(graph, Op::kGather, "rows", {table, positions}, {{key::kAxis, 0}})[0];
  const ValueId own =
      emit(graph, Op::kReshape, "own", {rows}, {{key::kShape, *graph.value(positions).shape}})[0];
  for (std::size_t i = 0; i < count; ++i)
    for (ValueId& id : graph.nodes[i].inputs)
      if (id == positions) id = own;
  graph.sort();
  const auto result = recognise_decoder(graph, 64);
  ASSERT_TRUE(std::holds_alternative<DecoderModel>(result))
      << std::get<NotRecognised>(result).node << ": " << std::get<NotRecognised>(result).reason;
  expect_numbers(std::get<DecoderModel>(result), fixtures() / "llama-optimum");
}

TEST(Proof, AFixedBatchAndASingleTokenPerStepAreFine) {
  ImportOptions options;
  options.fixed_dims = {{"batch_size", 1}};
  const auto fixed = recognise_decoder(import_model(fixtures() / "llama-optimum", options), 64);
  EXPECT_TRUE(std::holds_alternative<DecoderModel>(fixed))
      << std::get<NotRecognised>(fixed).node << ": " << std::get<NotRecognised>(fixed).reason;
  options.fixed_dims = {{"batch_size", 1}, {"sequence_length", 1}};
  const auto single = recognise_decoder(import_model(fixtures() / "llama-optimum", options), 64);
  EXPECT_TRUE(std::holds_alternative<DecoderModel>(single))
      << std::get<NotRecognised>(single).node << ": " << std::get<NotRecognised>(single).reason;
}

}  // namespace
}  // namespace ark::test
