// Driving a StepRunner by hand: sequences with pages of their own, steps built from any mix of chunks.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "engine/compile.h"
#include "engine/ragged_runner.h"

namespace ark::test {

using Rows = std::vector<std::vector<float>>;  // logits

inline int32_t best(const std::vector<float>& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// The vocabulary of tests/engine/token_graphs.h, where nothing else is said.
inline std::vector<int32_t> random_tokens(int n, uint32_t seed, int64_t vocabulary = 101) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i)
    tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
  return tokens;
}

struct RunnerSetup {
  int32_t ranks = 1;
  int32_t max_tokens = 64, max_rows = 16, max_slots = 8, max_length = 64, page_size = 4, pages = 128;
  Link link = Link::kDirect;
  WeightPolicy weights = WeightPolicy::kExact;
  Activations activations = Activations::kAuto;
  bool bf16_tiles = false;
  DType kv_dtype = DType::kF32;
  int32_t machine_ranks = 1;
  bool send_zeros = false;
  RaggedOptions options;  // limits are filled in
};

inline Compiled compile(const DecoderModel& model, const RunnerSetup& s) {
  CompileOptions c;
  c.ranks = s.ranks;
  c.max_tokens = s.max_tokens;
  c.max_rows = s.max_rows;
  c.max_items = s.max_tokens;
  c.page_size = s.page_size;
  c.pages = s.pages;
  c.link = s.link;
  c.storage.policy = s.weights;
  c.activations = s.activations;
  c.bf16 = s.bf16_tiles ? Bf16Unit::kTiles : Bf16Unit::kPairs;
  c.kv_dtype = s.kv_dtype;
  c.machine_ranks = s.machine_ranks;
  c.send_zeros = s.send_zeros;
  return compile_decoder(model, c);
}

inline RaggedOptions ragged_options(const DecoderModel& model, const RunnerSetup& s) {
  RaggedOptions o = s.options;
  o.limits = {s.max_tokens,
              s.max_rows,
              s.max_slots,
              s.max_length,
              s.page_size,
              s.pages,
              static_cast<int32_t>(model.vocabulary),
              2};
  o.max_items = s.max_tokens;
  return o;
}

inline std::unique_ptr<RaggedRunner> make_runner(const DecoderModel& model, const RunnerSetup& s) {
  return make_ragged_runner(compile(model, s), ragged_options(model, s));
}

inline StepResult wait_for(StepRunner& runner) {
  for (;;) {
    if (auto result = runner.poll(std::chrono::seconds(10))) return *std::move(result);
  }
}

// One sequence: its tokens so far and its pages. Pages are handed out by the test.
struct Sequence {
  int32_t slot = 0;
  std::vector<int32_t> tokens;
  int32_t cached = 0;
  std::vector<int32_t> pages;
};

// Appends the next `count` tokens of `s` to `step`; `want` adds a row after the last of them.
inline void add_chunk(StepDescriptor& step, Sequence& s, int32_t count, int32_t page_size, int32_t& next_page,
                      bool want, uint32_t flags, const SamplingParams& sampling = {.temperature = 0}) {
  while (static_cast<int32_t>(s.pages.size()) * page_size < s.cached + count) {
    step.page_deltas.push_back({s.slot, static_cast<int32_t>(s.pages.size()), next_page});
    s.pages.push_back(next_page++);
  }
  const auto first = static_cast<int32_t>(step.tokens.size());
  for (int32_t i = 0; i < count; ++i) step.tokens.push_back(s.tokens[s.cached + i]);
  step.sequences.push_back({s.slot, first, count, s.cached});
  s.cached += count;
  if (!want) return;
  StepRow row;
  row.token = first + count - 1;
  row.slot = s.slot;
  row.flags = flags;
  row.prompt_length = 0;
  row.sampling = sampling;
  step.rows.push_back(row);
}

// A sequence's tokens by chunks, a step each: the logits of each one's last token. `next_page`: where its pages begin.
inline std::vector<std::vector<float>> run_chunks(StepRunner& runner, Sequence s,
                                                  const std::vector<int32_t>& chunks, int32_t next_page = 0) {
  std::vector<std::vector<float>> logits;
  for (const int32_t chunk : chunks) {
    StepDescriptor step;
    add_chunk(step, s, chunk, runner.limits().page_size, next_page, true, kWantLogits);
    runner.post(step);
    logits.push_back(wait_for(runner).rows[0].logits);
  }
  return logits;
}

// Logits of the last token of `prompt`, prefilled `chunk` tokens a step, then `extra` greedy tokens; all
// rows' logits.
inline std::vector<std::vector<float>> run_greedy(StepRunner& runner, const std::vector<int32_t>& prompt,
                                                  int32_t chunk, int32_t extra) {
  std::vector<std::vector<float>> logits;
  Sequence s{.slot = 0, .tokens = prompt};
  int32_t next_page = 0;
  const int32_t page_size = runner.limits().page_size;
  while (static_cast<int32_t>(logits.size()) <= extra) {
    StepDescriptor step;
    const auto left = static_cast<int32_t>(s.tokens.size()) - s.cached;
    const int32_t count = std::min(chunk, left);
    add_chunk(step, s, count, page_size, next_page, count == left, kWantToken | kWantLogits);
    runner.post(step);
    StepResult result = wait_for(runner);
    if (result.rows.empty()) continue;
    s.tokens.push_back(result.rows[0].token);
    logits.push_back(std::move(result.rows[0].logits));
  }
  return logits;
}

// Logits of all tokens, so many of them a step.
inline std::vector<std::vector<float>> all_rows(StepRunner& runner, const std::vector<int32_t>& prompt,
                                                int32_t chunk) {
  Sequence s{.slot = 0, .tokens = prompt};
  const auto all = static_cast<int32_t>(prompt.size());
  int32_t next_page = 0;
  std::vector<std::vector<float>> logits;
  for (int32_t first = 0; first < all; first += chunk) {
    StepDescriptor step;
    const int32_t count = std::min(chunk, all - first);
    add_chunk(step, s, count, runner.limits().page_size, next_page, false, 0);
    for (int32_t t = 0; t < count; ++t)
      step.rows.push_back({.token = t, .slot = 0, .flags = kWantLogits, .sampling = {.temperature = 0}});
    runner.post(step);
    for (auto& row : wait_for(runner).rows) logits.push_back(std::move(row.logits));
  }
  return logits;
}

inline bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() || std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0)
      return false;
  }
  return true;
}

}  // namespace ark::test
