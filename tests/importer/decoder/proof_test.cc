// What is nearly a decoder must not pass for one: exported graphs with one thing changed.
#include <gtest/gtest.h>

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

// The logits are scaled once the context is longer than `threshold`.
Graph scaled_beyond(int64_t threshold) {
  Graph graph = llama();
  std::string why;
  const auto signature = find_signature(graph, &why);
  const auto& cache = signature.value().caches.at(0);
  const Shape& shape = *graph.value(graph.outputs[cache.output]).shape;
  const Expr total = shape.at(static_cast<std::size_t>(cache.sequence_axis));
  const auto number = [&](float x) {
    return graph.add_constant(make_constant(Tensor::of<float>(DType::kF32, {}, {{x}})));
  };
  const ValueId limit =
      graph.add_constant(make_constant(Tensor::of<int64_t>(DType::kI64, {}, {{threshold}})));
  const ValueId length =
      emit(graph, Op::kDims, "length", {}, {{key::kValues, Shape{total}}, {key::kScalar, 1}})[0];
  const ValueId far = emit(graph, Op::kGreater, "far", {length, limit})[0];
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
