// Exporters' files: what is recognised of them, and that the token graph computes what they compute.
#include <gtest/gtest.h>

#include "base/ir/keys.h"
#include "base/ir/quantized.h"
#include "importer/import.h"
#include "tests/fixtures.h"
#include "tests/importer/decoder/decoder_cases.h"
#include "tests/importer/decoder/token_interpreter.h"

namespace ark::test {
namespace {

struct Case {
  const char* fixture;
  std::size_t layers;
  int64_t heads, kv_heads, dim, window, vocabulary, max_positions;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.fixture; }

int64_t query_heads(const DecoderModel& model) {
  for (const Node& n : model.tokens.nodes)
    if (!n.removed && n.op == Op::kPagedAttention)
      return (*model.tokens.value(n.inputs[0]).shape)[1].constant().value();
  return 0;
}

class Exported : public testing::TestWithParam<Case> {};

TEST_P(Exported, IsRecognisedAndComputesTheSame) {
  const Case& c = GetParam();
  const auto folder = fixtures() / c.fixture;
  const auto model = recognised(folder);
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ(model->caches.size(), c.layers);
  EXPECT_EQ(query_heads(*model), c.heads);
  EXPECT_EQ(model->vocabulary, c.vocabulary);
  EXPECT_EQ(model->max_positions, c.max_positions);
  EXPECT_EQ(model->signature.max_positions, c.max_positions == 8192 ? 0 : c.max_positions);
  for (const CacheSpec& cache : model->caches) {
    EXPECT_EQ(cache.kv_heads, c.kv_heads);
    EXPECT_EQ(cache.key_dim, c.dim);
    EXPECT_EQ(cache.value_dim, c.dim);
    EXPECT_EQ(cache.window, c.window);
  }
  if (std::filesystem::exists(folder / "expected.json")) expect_numbers(*model, folder);
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, Exported,
    testing::Values(
        Case{"gpt2-optimum", 4, 4, 4, 16, 0, 512, 64}, Case{"gpt2-torchscript", 4, 4, 4, 16, 0, 512, 64},
        Case{"gpt2-dynamo", 4, 4, 4, 16, 0, 512, 64}, Case{"gpt2-ort-fused", 4, 4, 4, 16, 0, 512, 64},
        Case{"gpt2-no-past", 4, 4, 4, 16, 0, 512, 64}, Case{"gpt2-fp16-io32", 4, 4, 4, 16, 0, 512, 64},
        Case{"tiny-random-gpt2", 5, 4, 4, 8, 0, 1000, 512}, Case{"llama-optimum", 3, 8, 2, 8, 0, 512, 8192},
        Case{"llama-eager", 3, 8, 2, 8, 0, 512, 8192}, Case{"llama-dynamo", 3, 8, 2, 8, 0, 512, 8192},
        Case{"llama-dynamo-latest", 3, 8, 2, 8, 0, 512, 8192},
        Case{"llama-dynamo-opset23", 3, 8, 2, 8, 0, 512, 8192},
        Case{"llama-dynamo-opset24", 3, 8, 2, 8, 0, 512, 8192}, Case{"llama-fp16", 3, 8, 2, 8, 0, 512, 8192},
        Case{"llama-fp16-dynamo", 3, 8, 2, 8, 0, 512, 8192},
        Case{"llama-fp16-fused", 3, 8, 2, 8, 0, 512, 8192}, Case{"llama-ort-fused", 3, 8, 2, 8, 0, 512, 8192},
        Case{"llama-ort-extended", 3, 8, 2, 8, 0, 512, 8192},
        Case{"llama-genai-fp32", 3, 8, 2, 16, 0, 512, 128},
        Case{"llama-genai-bias", 3, 8, 2, 16, 0, 512, 128}, Case{"phi3-genai-fp32", 2, 4, 4, 16, 0, 512, 128},
        Case{"llama-int4", 3, 8, 2, 8, 0, 512, 8192}, Case{"llama-int4-asymmetric", 3, 8, 2, 8, 0, 512, 8192},
        Case{"llama-int4-qdq", 3, 8, 2, 8, 0, 512, 8192}, Case{"llama-int8-nbits", 3, 8, 2, 8, 0, 512, 8192},
        Case{"llama-genai-int4", 3, 8, 2, 16, 0, 512, 128},
        Case{"mistral-sliding", 3, 4, 2, 24, 4, 512, 8192}, Case{"qwen3-moe", 2, 4, 2, 8, 0, 512, 8192}),
    [](const auto& info) {
      std::string name = info.param.fixture;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST(Recognise, QuantizedWeightsStayAsTheyAreStored) {
  struct {
    const char* fixture;
    std::ptrdiff_t products;  // in the file; the packed ones of genai are split in three
    int32_t bits;
    bool columns = false;  // one scale for each, else blocks of 32
    int64_t level = 0;     // to which the file rounds what is multiplied
  } const files[] = {{"llama-int4", 22, 4},
                     {"llama-int4-asymmetric", 22, 4},
                     {"llama-int4-qdq", 22, 4},
                     {"llama-int8-nbits", 22, 8},
                     {"llama-int8-dynamic", 22, 8, true, 4},
                     {"llama-genai-int4", 16 + 2 * 3, 4, false, 4}};
  for (const auto& file : files) {
    SCOPED_TRACE(file.fixture);
    const auto model = recognised(fixtures() / file.fixture);
    ASSERT_TRUE(model.has_value());
    int products = 0;
    for (const Node& node : model->tokens.nodes) {
      EXPECT_NE(node.op, Op::kMatMulNBits);
      EXPECT_NE(node.op, Op::kDequantizeLinear);
      if (node.op != Op::kMatMul) continue;
      const ConstantPtr& w = model->tokens.value(node.inputs[1]).constant;
      ASSERT_TRUE(w && w->quantized) << node.name;
      EXPECT_EQ(w->quantized->bits, file.bits);
      EXPECT_EQ(w->quantized->block, file.columns ? w->quantized->rows : 32);
      EXPECT_EQ(node.attributes.get_or(key::kAccuracyLevel, 0), file.level);
      ++products;
    }
    EXPECT_EQ(products, file.products);
    const std::string told = " weights of " + std::to_string(file.bits) + " bits";
    EXPECT_TRUE(std::any_of(model->evidence.begin(), model->evidence.end(),
                            [&](const std::string& line) { return line.ends_with(told); }));
  }
}

Node& first_of(Graph& graph, Op op) {
  for (Node& node : graph.nodes)
    if (!node.removed && node.op == op) return node;
  throw std::runtime_error("no " + std::string(name_of(op)));
}

TEST(Recognise, WeightsQuantizedInAnotherWayAreRefusedOrKeptAsTheyAre) {
  Graph misfit = import_model(fixtures() / "llama-int4-qdq");
  first_of(misfit, Op::kDequantizeLinear).attributes.set(key::kBlockSize, 16);  // scales are for 32
  const auto result = recognise_decoder(misfit, 0);
  const auto* refused = std::get_if<NotRecognised>(&result);
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->reason.find("q_proj/MatMul_DQ_Q4"), std::string::npos) << refused->reason;
  EXPECT_NE(refused->reason.find("has scales [2, 64] for [64, 64] in blocks of 16"), std::string::npos);

  Graph permuted = import_model(fixtures() / "llama-int4");
  Tensor places = Tensor::zeros(DType::kI32, {64});
  for (int64_t k = 0; k < 64; ++k) places.as<int32_t>()[k] = static_cast<int32_t>(k % 2);
  const ValueId g_idx = permuted.add_constant(make_constant(places));
  Node& product = first_of(permuted, Op::kMatMulNBits);
  product.inputs.resize(5, kNoValue);
  product.inputs[4] = g_idx;
  const auto kept = recognise_decoder(permuted, 0);
  const auto* model = std::get_if<DecoderModel>(&kept);
  ASSERT_TRUE(model);
  const auto& nodes = model->tokens.nodes;
  EXPECT_EQ(std::count_if(nodes.begin(), nodes.end(), [](const Node& n) { return n.op == Op::kMatMulNBits; }),
            1);
}

TEST(Recognise, TinyRandomGpt2GivesItsPublishedTokens) {
  const auto model = recognised(fixtures() / "tiny-random-gpt2");
  ASSERT_TRUE(model.has_value());
  const std::vector<std::vector<int64_t>> sequences{{0, 0, 0, 52, 204, 204, 204, 204, 204, 204},
                                                    {0, 0, 195, 731, 731, 114, 114, 114, 114, 114}};
  for (const auto& ids : sequences) {
    const Tensor logits = run_tokens(*model, ids);
    for (std::size_t i = 4; i < ids.size(); ++i) {
      const float* row = logits.as<float>() + static_cast<int64_t>(i - 1) * model->vocabulary;
      EXPECT_EQ(std::max_element(row, row + model->vocabulary) - row, ids[i]) << "token " << i;
    }
  }
}

TEST(Recognise, TheCallersLengthBoundsTables) {
  const auto model = recognised(fixtures() / "llama-optimum", 300);
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ(model->max_positions, 300);
  const auto shorter = recognised(fixtures() / "gpt2-optimum", 20);
  ASSERT_TRUE(shorter.has_value());
  EXPECT_EQ(shorter->max_positions, 20);
  const auto longer = recognised(fixtures() / "gpt2-optimum", 4096);
  ASSERT_TRUE(longer.has_value());
  EXPECT_EQ(longer->max_positions, 64);
}

struct Refused {
  const char* fixture;
  const char* node;    // part of it
  const char* reason;  // part of it
};
void PrintTo(const Refused& c, std::ostream* out) { *out << c.fixture; }

class NotADecoder : public testing::TestWithParam<Refused> {};

TEST_P(NotADecoder, IsRefusedWithNodeAndReason) {
  const auto result = recognise_decoder(import_model(fixtures() / GetParam().fixture), 0);
  const auto* refused = std::get_if<NotRecognised>(&result);
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->node.find(GetParam().node), std::string::npos) << refused->node;
  EXPECT_NE(refused->reason.find(GetParam().reason), std::string::npos) << refused->reason;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, NotADecoder,
                         testing::Values(Refused{"bert-classifier", "", "vocabulary"},
                                         Refused{"minilm-encoder", "", "vocabulary"},
                                         Refused{"t5-decoder", "", "encoder_hidden_states"},
                                         Refused{"t5-decoder-with-past", "", "encoder"},
                                         Refused{"whisper-decoder", "", "encoder_hidden_states"},
                                         Refused{"vit-tiny", "", "embedding table"}),
                         [](const auto& info) {
                           std::string name = info.param.fixture;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace ark::test
