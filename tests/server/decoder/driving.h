// Drives a StepRunner by hand: one sequence, any chunking, raw logits or greedy tokens.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "server/load/load_runner.h"
#include "tests/fixtures.h"

namespace ark::test {

inline StageLog quiet_log() {
  return StageLog([](const std::string&) {});
}

inline LoadOptions small_options(const std::filesystem::path& model, int32_t tp = 1) {
  LoadOptions options;
  options.model = model;
  options.tp = tp;
  options.threads = std::max(tp, 1);
  options.max_sequences = 4;
  options.max_batched_tokens = 64;
  options.max_length = 64;
  return options;
}

inline StepResult finish_step(StepRunner& runner, const StepDescriptor& step) {
  runner.post(step);
  for (int i = 0; i < 600; ++i)
    if (auto result = runner.poll(std::chrono::milliseconds(100))) return *result;
  throw std::runtime_error("a step did not end within 60 s");
}

// The sequence's pages: slot * pages_each ... in order.
inline void give_pages(const StepRunner& runner, StepDescriptor& step, int32_t slot) {
  const RunnerLimits& limits = runner.limits();
  const int32_t each = (limits.max_length + limits.page_size - 1) / limits.page_size;
  for (int32_t i = 0; i < each; ++i) step.page_deltas.push_back({slot, i, (slot * each + i) % limits.pages});
}

// Logits after each of `tokens`, fed in chunks of the given sizes (the last one repeats).
inline std::vector<std::vector<float>> logits_of(StepRunner& runner, const std::vector<int32_t>& tokens,
                                                 const std::vector<int32_t>& chunks, int32_t slot = 0) {
  std::vector<std::vector<float>> logits;
  for (std::size_t at = 0, k = 0; at < tokens.size(); ++k) {
    const auto size = static_cast<std::size_t>(chunks[std::min(k, chunks.size() - 1)]);
    const std::size_t count =
        std::min({size, tokens.size() - at, static_cast<std::size_t>(runner.limits().max_rows)});
    StepDescriptor step;
    if (at == 0) give_pages(runner, step, slot);
    step.sequences = {{slot, 0, static_cast<int32_t>(count), static_cast<int32_t>(at)}};
    for (std::size_t i = 0; i < count; ++i) {
      step.tokens.push_back(tokens[at + i]);
      StepRow row;
      row.token = static_cast<int32_t>(i);
      row.slot = slot;
      row.flags = kWantLogits;
      step.rows.push_back(row);
    }
    for (RowResult& row : finish_step(runner, step).rows) logits.push_back(std::move(row.logits));
    at += count;
  }
  return logits;
}

// Greedy tokens; the next step is posted with a feedback token before the last one is polled.
inline std::vector<int32_t> greedy(StepRunner& runner, const std::vector<int32_t>& prompt, int32_t count,
                                   int32_t slot = 0) {
  std::vector<int32_t> out;
  StepRow row;
  row.slot = slot;
  row.sampling.temperature = 0;
  StepDescriptor step;
  give_pages(runner, step, slot);
  step.tokens = prompt;
  step.sequences = {{slot, 0, static_cast<int32_t>(prompt.size()), 0}};
  row.token = static_cast<int32_t>(prompt.size()) - 1;
  step.rows = {row};
  runner.post(step);
  row.token = 0;
  for (int32_t i = 1; i <= count; ++i) {
    if (i < count) {
      StepDescriptor next;
      next.tokens = {kFeedbackToken};
      next.sequences = {{slot, 0, 1, static_cast<int32_t>(prompt.size()) + i - 1}};
      next.rows = {row};
      runner.post(next);
    }
    std::optional<StepResult> result;
    for (int k = 0; k < 600 && !result; ++k) result = runner.poll(std::chrono::milliseconds(100));
    if (!result) throw std::runtime_error("a step did not end within 60 s");
    out.push_back(result->rows[0].token);
  }
  return out;
}

inline nlohmann::json read_json(const std::filesystem::path& file) {
  std::ifstream in(file);
  return nlohmann::json::parse(in);
}

}  // namespace ark::test
