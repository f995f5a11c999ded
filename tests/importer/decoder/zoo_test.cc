// Decoders that no fixture shows: models/zoo.py writes them, in primitive operators, with what ONNX Runtime
// makes of them. All but the broken ones are recognised and compute the same; the broken ones are refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/ir/quantized.h"
#include "importer/import.h"
#include "tests/fixtures.h"
#include "tests/importer/decoder/decoder_cases.h"

namespace ark::test {
namespace {

// The zoo: $ARK_ZOO if it is there already, else written once into a temporary folder.
std::filesystem::path zoo() {
  static const std::filesystem::path folder = [] {
    if (const char* given = std::getenv("ARK_ZOO")) return std::filesystem::path(given);
    const auto python = source_root() / ".venv" / "bin" / "python";
    if (!std::filesystem::exists(python)) return std::filesystem::path();
    const auto out = std::filesystem::temp_directory_path() / ("ark-zoo-" + std::to_string(::getpid()));
    const std::string command =
        python.string() + " " + (source_root() / "models" / "zoo.py").string() + " " + out.string();
    const bool written =
        std::system((command + " >/dev/null 2>&1 && " + command + " --random 24 >/dev/null 2>&1").c_str()) ==
        0;
    return written ? out : std::filesystem::path();
  }();
  return folder;
}

std::vector<std::filesystem::path> models() {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(zoo()))
    if (std::filesystem::exists(entry.path() / "expected.json")) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  return folders;
}

// Large weights are kept as the file stores them, though it widens them before use.
void expect_narrow_weights(const Graph& graph, DType stored) {
  int large = 0;
  for (const Value& value : graph.values) {
    if (!value.constant || !value.constant->file || value.constant->size() <= 65'536) continue;
    ++large;
    EXPECT_EQ(value.dtype, stored) << value.name;
  }
  EXPECT_GE(large, 5);
}

// Every matrix that tokens are multiplied with or looked up in is read as the file stores it.
void expect_quantized_weights(const DecoderModel& model, int32_t bits, bool tied) {
  int seen = 0;
  ConstantPtr embedding, head;
  for (const Node& node : model.tokens.nodes) {
    if (node.removed || (node.op != Op::kMatMul && node.op != Op::kGather)) continue;
    const ConstantPtr& w = model.tokens.value(node.inputs[node.op == Op::kMatMul ? 1 : 0]).constant;
    if (!w || w->name == "by_position") continue;
    ASSERT_TRUE(w->quantized) << node.name;
    EXPECT_EQ(w->quantized->bits, bits);
    ++seen;
    if (node.op == Op::kMatMul)
      head = w;
    else if (!embedding)
      embedding = w;
  }
  EXPECT_GE(seen, 10);
  ASSERT_TRUE(embedding && head);
  EXPECT_EQ(same_payload(*embedding, *head), tied);
  EXPECT_EQ(embedding->quantized == head->quantized, tied) << "tied weights would be stored twice";
}

class Zoo : public testing::Test {
 protected:
  void SetUp() override {
    if (zoo().empty())
      GTEST_SKIP() << "models/zoo.py cannot run: no .venv (scripts/venv.sh makes it), and no ARK_ZOO";
  }
};

TEST_F(Zoo, DecodersAreRecognisedAndComputeTheSame) {
  int seen = 0;
  for (const auto& folder : models()) {
    const auto expected = expected_of(folder);
    if (!expected.value("decoder", true)) continue;
    SCOPED_TRACE(folder.filename());
    if (++seen % 6 && is_sanitized()) continue;
    const auto model = recognised(folder);
    if (!model) continue;
    const auto& config = expected["config"];
    EXPECT_EQ(model->caches.size(), config["layers"].get<std::size_t>());
    const auto every = config["window_every"].get<std::size_t>();
    for (std::size_t layer = 0; layer < model->caches.size(); ++layer) {
      const CacheSpec& cache = model->caches[layer];
      EXPECT_EQ(cache.kv_heads, config["kv_heads"].get<int64_t>());
      EXPECT_EQ(cache.key_dim, config["head_dim"].get<int64_t>());
      EXPECT_EQ(cache.window, layer % every == 0 ? config["window"].get<int64_t>() : 0);
    }
    if (!config.value("cache", true) && config["mask"] == "buffer") {  // served no further than proven
      EXPECT_GT(model->max_positions, config["window"].get<int64_t>());
      EXPECT_LE(model->max_positions, config["context"].get<int64_t>());
    }
    const auto stored = config.value("stored", "dtype");
    if (is_narrow_float(dtype_from_name(stored)))
      expect_narrow_weights(model->tokens, dtype_from_name(stored));
    if (stored == "int8" || stored == "uint8-rows" || stored == "f8e4m3-scaled")
      expect_quantized_weights(*model, 8, config["tied"].get<bool>());
    if (stored == "uint4" || stored == "nbits")
      expect_quantized_weights(*model, 4, config["tied"].get<bool>());
    expect_numbers(*model, folder);
  }
  EXPECT_GT(seen, 40);
}

TEST_F(Zoo, BrokenOnesAreRefusedByNode) {
  int seen = 0;
  for (const auto& folder : models()) {
    if (expected_of(folder).value("decoder", true)) continue;
    SCOPED_TRACE(folder.filename());
    ++seen;
    const auto result = recognise_decoder(import_model(folder), 0);
    const auto* refused = std::get_if<NotRecognised>(&result);
    ASSERT_TRUE(refused);
    EXPECT_FALSE(refused->node.empty());
    EXPECT_FALSE(refused->reason.empty());
  }
  EXPECT_GE(seen, 3);
}

}  // namespace
}  // namespace ark::test
