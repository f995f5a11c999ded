// Recognised decoders against their published tokens, the plain runner and themselves: any tp, chunking,
// executor.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

#include "base/ir/keys.h"
#include "engine/plain/plain_runner.h"
#include "importer/decoder.h"
#include "importer/import.h"
#include "importer/op_importer.h"
#include "tests/server/decoder/driving.h"
#include "tests/server/decoder/roundings.h"

namespace ark {
namespace {

using test::greedy;
using test::logits_of;
using test::small_options;

std::shared_ptr<StepRunner> load(const LoadOptions& options, bool must_be_ragged = true) {
  StageLog log = test::quiet_log();
  LoadedRunner loaded = load_runner(options, log);
  EXPECT_EQ(loaded.is_ragged, must_be_ragged) << options.model;
  return loaded.runner;
}

class Decoder : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder() const { return test::fixtures() / GetParam(); }
  std::filesystem::path model() const { return folder() / "model.onnx"; }
  nlohmann::json expected() const { return test::read_json(folder() / "expected.json"); }
};

// A wrong token at a margin above twice the tolerance is an error; below it, a near tie: what follows may
// differ.
void expect_greedy(const nlohmann::json& expected, StepRunner& runner, const std::string& what) {
  const double tolerance = expected.at("tolerance");
  for (const auto& entry : expected.at("greedy")) {
    const auto ids = entry.at("greedy_ids").get<std::vector<int32_t>>();
    const auto got =
        greedy(runner, entry.at("prompt_ids").get<std::vector<int32_t>>(), static_cast<int32_t>(ids.size()));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (got[i] == ids[i]) continue;
      ASSERT_LE(entry.at("margins")[i].get<double>(), 2 * tolerance)
          << what << ": token " << i << " is " << got[i] << ", expected " << ids[i];
      break;
    }
  }
}

std::vector<int32_t> some_tokens(std::size_t count) {
  std::mt19937 random(7);
  std::vector<int32_t> tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(3 + random() % 400));
  return tokens;
}

// Products of f32, also where a file asks for coarser ones.
LoadOptions in_f32(LoadOptions options) {
  options.device.activations = Activations::kF32;
  return options;
}

TEST_P(Decoder, GivesThePublishedTokensAtEveryTp) {
  for (const int32_t tp : {1, 2, 3, 4})
    expect_greedy(expected(), *load(in_f32(small_options(model(), tp))),
                  GetParam() + " tp " + std::to_string(tp));
}

// The plain runner over a graph that the caller may have changed.
std::vector<std::vector<float>> plain_logits(const Graph& graph, const std::vector<int32_t>& tokens) {
  PlainRunnerOptions options;
  options.max_length = 64;
  PlainRunner runner(graph, *find_signature(graph, nullptr), options);
  return logits_of(runner, tokens, {static_cast<int32_t>(tokens.size())});
}

void expect_close(const std::vector<std::vector<float>>& want, const std::vector<std::vector<float>>& got,
                  double bound, const std::string& what) {
  ASSERT_EQ(want.size(), got.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    float magnitude = 1;
    for (const float w : want[i]) magnitude = std::max(magnitude, std::abs(w));
    for (std::size_t j = 0; j < want[i].size(); ++j) {
      const double diff = std::abs(static_cast<double>(want[i][j]) - got[i][j]);
      ASSERT_FALSE(!(diff <= bound * magnitude))
          << what << ", token " << i << " logit " << j << ": " << got[i][j] << " instead of " << want[i][j]
          << ", bound " << bound;
    }
  }
}

// The ragged runner computes in f32 whatever the file's types are. Against the plain runner on the graph
// widened to f32 it keeps a bound of f32 for every file; against the file as it is, the bound of the type
// that it rounds to. Products in int8, where a file asks for them, are each off by 1/254 of the largest factor at most.
TEST_P(Decoder, EqualsThePlainRunnerWithinTheRoundings) {
  const std::vector<int32_t> tokens = some_tokens(24);
  const auto context = static_cast<int64_t>(tokens.size());
  const auto got = logits_of(*load(in_f32(small_options(model()))), tokens, {24});
  Graph graph = import_model(model());
  if (test::has_half(graph)) {
    const auto roundings = static_cast<double>(test::longest_roundings(graph, context, true));
    expect_close(plain_logits(graph, tokens), got, test::kUnitF16 * roundings, "as stored");
    const DecoderSignature signature = *find_signature(graph, nullptr);
    std::vector<ValueId> roots = {graph.inputs[signature.ids]};
    for (const DecoderSignature::Cache& cache : signature.caches) roots.push_back(graph.inputs[cache.input]);
    test::widen(graph, roots);
  }
  const auto roundings = static_cast<double>(test::longest_roundings(graph, context, false));
  expect_close(plain_logits(graph, tokens), got, test::kUnitF32 * roundings, "in f32");
  const auto products = std::count_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    return !node.removed && node.attributes.get_or(key::kAccuracyLevel, 0) == 4;
  });
  if (products == 0) return;
  const auto quantized = logits_of(*load(small_options(model())), tokens, {24});
  EXPECT_NE(quantized, got);
  expect_close(got, quantized, static_cast<double>(products) / 254, "in int8");
}

TEST_P(Decoder, EqualBytesForAnyTpChunkingAndExecutor) {
  const std::vector<int32_t> tokens = some_tokens(40);
  const auto reference = logits_of(*load(small_options(model())), tokens, {40});
  const auto same = [&](const std::vector<std::vector<float>>& other, const std::string& what) {
    ASSERT_EQ(other.size(), reference.size()) << what;
    for (std::size_t i = 0; i < other.size(); ++i)
      ASSERT_EQ(std::memcmp(other[i].data(), reference[i].data(), reference[i].size() * sizeof(float)), 0)
          << what << ", token " << i;
  };
  for (const int32_t tp : {1, 2, 4}) {
    const auto runner = load(small_options(model(), tp));
    for (const std::vector<int32_t>& chunks : {std::vector<int32_t>{1}, {40}, {7, 1, 13, 2, 17}})
      same(logits_of(*runner, tokens, chunks, 1),
           "tp " + std::to_string(tp) + " first chunk " + std::to_string(chunks[0]));
    LoadOptions lockstep = small_options(model(), tp);
    lockstep.lockstep = true;
    same(logits_of(*load(lockstep), tokens, {16, 3}), "lockstep tp " + std::to_string(tp));
  }
}

std::vector<std::string> decoders() {
  return {"gpt2-optimum",
          "gpt2-torchscript",
          "gpt2-dynamo",
          "gpt2-ort-fused",
          "gpt2-no-past",
          "llama-optimum",
          "llama-eager",
          "llama-dynamo",
          "llama-dynamo-latest",
          "llama-dynamo-opset23",
          "llama-dynamo-opset24",
          "llama-fp16",
          "llama-fp16-dynamo",
          "llama-fp16-fused",
          "llama-ort-extended",
          "llama-ort-fused",
          "llama-genai-fp32",
          "mistral-sliding",
          "llama-int4-asymmetric",
          "llama-int4-qdq",
          "llama-int8-nbits",
          "llama-genai-int4",
          "qwen3-moe"};
}
INSTANTIATE_TEST_SUITE_P(Fixtures, Decoder, testing::ValuesIn(decoders()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Prompt log probabilities need each token's row, also where the file makes the last one's only, in two axes
// or three, and where its shapes do not tell.
TEST(PlainRunner, GivesEachTokenItsOwnLogitsThoughTheFileMakesTheLastOnly) {
  for (const char* name : {"llama-optimum", "gpt2-no-past"}) {
    const Graph whole = import_model(test::fixtures() / name);
    const DecoderSignature roles = *find_signature(whole, nullptr);
    const std::vector<int32_t> tokens = some_tokens(9);
    const auto want = plain_logits(whole, tokens);
    for (const std::size_t axes : {2, 3})
      for (const bool told : {true, false}) {
        Graph graph = whole;
        const ValueId logits = graph.outputs[roles.logits];
        const Shape full = *graph.value(logits).shape;
        ValueId last = emit(graph, Op::kSlice, "last", {logits},
                            {{key::kAxes, std::vector<int64_t>{1}},
                             {key::kStarts, Shape{full[1] - 1}},
                             {key::kEnds, Shape{full[1]}},
                             {key::kSteps, std::vector<int64_t>{1}}})[0];
        if (axes == 2)
          last = emit(graph, Op::kReshape, "flat", {last}, {{key::kShape, Shape{full[0], full[2]}}})[0];
        if (!told) (*graph.value(last).shape)[axes - 2] = Expr::symbol("rows");
        graph.outputs[roles.logits] = last;
        EXPECT_EQ(find_signature(graph, nullptr)->last_only, told);
        expect_close(want, plain_logits(graph, tokens), 1e-4, name);
      }
  }
}

TEST(PlainRunner, WhateverIsThrownFailsItsSequenceOnly) {
  const Graph graph = import_model(test::fixtures() / "gpt2-no-past");
  bool fails = false;
  PlainRunnerOptions options;
  options.parallel = [&](int64_t n, const std::function<void(int64_t)>& tile) {
    if (fails) throw std::length_error("vector::_M_default_append");  // neither Error nor lack of memory
    for (int64_t i = 0; i < n; ++i) tile(i);
  };
  PlainRunner runner(graph, *find_signature(graph, nullptr), options);
  const auto row = [&] {
    StepDescriptor step{.tokens = {1, 2, 3}, .sequences = {{0, 0, 3, 0}}};
    step.rows.push_back({.token = 2, .slot = 0, .flags = kWantToken});
    runner.post(step);
    for (;;)
      if (const auto result = runner.poll(std::chrono::seconds(10))) return result->rows.at(0);
  };
  fails = true;
  const RowResult failed = row();
  ASSERT_TRUE(failed.error);
  EXPECT_EQ(failed.error->code(), Code::kInternal);
  fails = false;
  const RowResult next = row();
  EXPECT_FALSE(next.error);
  EXPECT_GE(next.token, 0);
}

TEST(TinyRandomGpt2, GivesThePublishedTokens) {
  const auto model = test::fixtures() / "tiny-random-gpt2" / "past.onnx";
  for (const int32_t tp : {1, 2, 4}) {
    const auto runner = load(small_options(model, tp));
    EXPECT_EQ(greedy(*runner, {0, 0, 0, 52}, 6), (std::vector<int32_t>{204, 204, 204, 204, 204, 204}));
    EXPECT_EQ(greedy(*runner, {0, 0, 195, 731}, 6), (std::vector<int32_t>{731, 114, 114, 114, 114, 114}));
  }
}

}  // namespace
}  // namespace ark
