// Model folders with data sets: shared by the recognition tests.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "importer/decoder.h"

namespace ark::test {

// The folder's expected.json.
nlohmann::json expected_of(const std::filesystem::path& folder);

// Recognises the folder's model; a refusal becomes a test failure that names node and reason (and nullopt).
std::optional<DecoderModel> recognised(const std::filesystem::path& folder, int64_t max_length = 0);

// Compares the token graph with what the folder stores: logits of the first unpadded prefill set, and the
// greedy tokens of expected.json (a near tie may differ).
void expect_numbers(const DecoderModel& model, const std::filesystem::path& folder);

}  // namespace ark::test
