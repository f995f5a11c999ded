#include "tests/importer/decoder/decoder_cases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "importer/import.h"
#include "tests/importer/decoder/token_interpreter.h"

namespace ark::test {

nlohmann::json expected_of(const std::filesystem::path& folder) {
  std::ifstream file(folder / "expected.json");
  return nlohmann::json::parse(file);
}

namespace {

Tensor stored(const std::filesystem::path& set, const char* kind, std::size_t index) {
  return materialise(
      *onnx::parse_tensor(set / (std::string(kind) + "_" + std::to_string(index) + ".pb")).constant);
}

void expect_prefill(const DecoderModel& model, const std::filesystem::path& folder, double tolerance) {
  const auto set = folder / "test_data_set_0";
  const Tensor ids = stored(set, "input", model.signature.ids),
               want = stored(set, "output", model.signature.logits);
  ASSERT_EQ(ids.dims.at(0), 1) << "the first set of " << folder << " is no single sequence";
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < ids.size(); ++i) tokens.push_back(ids.integer(i));
  const Tensor got = run_tokens(model, tokens);
  const int64_t skip = got.size() - want.size();  // files may give the last token's logits only
  ASSERT_GE(skip, 0);
  double worst = 0;
  for (int64_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(got.real(skip + i) - want.real(i));
    ASSERT_TRUE(difference <= tolerance)
        << folder << ": logit " << i << " is " << got.real(skip + i) << ", not " << want.real(i);
    worst = std::max(worst, difference);
  }
  testing::Test::RecordProperty("max_difference", std::to_string(worst));
}

void expect_greedy(const DecoderModel& model, const nlohmann::json& greedy, double tolerance) {
  std::vector<int64_t> ids = greedy["prompt_ids"].get<std::vector<int64_t>>();
  const auto want = greedy["greedy_ids"].get<std::vector<int64_t>>();
  const auto prompt = static_cast<int64_t>(ids.size());
  ids.insert(ids.end(), want.begin(), want.end() - 1);
  const Tensor logits = run_tokens(model, ids);
  for (std::size_t step = 0; step < want.size(); ++step) {
    const int64_t row = (prompt - 1 + static_cast<int64_t>(step)) * model.vocabulary;
    int64_t best = 0;
    for (int64_t v = 1; v < model.vocabulary; ++v)
      if (logits.real(row + v) > logits.real(row + best)) best = v;
    const double margin = greedy["margins"][step];
    EXPECT_TRUE(best == want[step] || margin <= 2 * tolerance)
        << "step " << step << ": " << best << ", not " << want[step] << ", margin " << margin;
  }
}

}  // namespace

std::optional<DecoderModel> recognised(const std::filesystem::path& folder, int64_t max_length) {
  auto result = recognise_decoder(import_model(folder), max_length);
  if (const auto* refused = std::get_if<NotRecognised>(&result)) {
    ADD_FAILURE() << folder << " is not recognised: node " << refused->node << ": " << refused->reason;
    return std::nullopt;
  }
  return std::get<DecoderModel>(std::move(result));
}

void expect_numbers(const DecoderModel& model, const std::filesystem::path& folder) {
  const nlohmann::json expected = expected_of(folder);
  const double tolerance = expected["tolerance"];
  expect_prefill(model, folder, tolerance);
  for (const auto& greedy : expected["greedy"]) expect_greedy(model, greedy, tolerance);
}

}  // namespace ark::test
