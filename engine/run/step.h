// One step of a decoder, as the scheduler asks for it and as the loops answer: values, no pointers.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace ark {

// In StepDescriptor::tokens: "the token that this sequence's slot sampled last", still on the device.
inline constexpr int32_t kFeedbackToken = -1;

struct SamplingParams {
  float temperature = 1;        // 0 = greedy: the largest logit, the smallest id among equals
  float top_p = 1;              // (0, 1]; kept: the smallest set of largest probabilities whose sum >= top_p
  float min_p = 0;              // [0, 1]; kept: probability >= min_p * largest probability
  int32_t top_k = 0;            // 0 = off
  float presence_penalty = 0;   // [-2, 2]; over generated tokens, OpenAI's definition
  float frequency_penalty = 0;  // [-2, 2]
  float repetition_penalty =
      1;              // > 0; over prompt and generated tokens, CTRL's definition (arXiv:1909.05858)
  uint64_t seed = 0;  // of Philox; noise depends on (seed, position, token id) only: Gumbel-max
  bool operator==(const SamplingParams&) const = default;
  bool needs_history() const {
    return presence_penalty != 0 || frequency_penalty != 0 || repetition_penalty != 1;
  }
};

// A run of tokens of one sequence: prefill chunk (count > 1) or decode (count == 1).
struct StepSequence {
  int32_t slot = 0;  // [0, max_slots): where the device keeps this sequence's page table, history, last token
  int32_t first = 0;      // index into StepDescriptor::tokens
  int32_t count = 0;      // >= 1; sequences tile `tokens` in order
  int32_t kv_length = 0;  // tokens cached before this step = position of the first token
  bool operator==(const StepSequence&) const = default;
};

// Entry `index` of slot's page table becomes `page`. Pages hold page_size tokens of all caches.
struct PageDelta {
  int32_t slot = 0, index = 0, page = 0;
  bool operator==(const PageDelta&) const = default;
};
// Copies a whole page (all caches) before the step runs: copy on write of shared prefixes.
struct PageCopy {
  int32_t from = 0, to = 0;
  bool operator==(const PageCopy&) const = default;
};

enum RowFlags : uint32_t {
  kWantToken = 1,    // sample a token, remember it as the slot's last
  kWantLogprob = 2,  // log-probability of the sampled token, or of `target` if that is >= 0
  kWantLogits = 4,   // the raw f32 logits [vocabulary] (tests, tools)
};

// A row of logits that is wanted: after the token at index `token`.
struct StepRow {
  int32_t token = 0;  // index into tokens
  int32_t slot = 0;
  uint32_t flags = kWantToken;
  int32_t target = -1;        // report this token's logprob (prompt logprobs), -1 = the sampled one's
  int32_t top = 0;            // also report the `top` largest logprobs, <= kMaxTop
  int32_t prompt_length = 0;  // of the slot's history, how many tokens are prompt (penalties)
  int32_t bias_first = 0, bias_count = 0;  // range of StepDescriptor::bias; count at most kMaxBias
  SamplingParams sampling;
  bool operator==(const StepRow&) const = default;
};
inline constexpr int32_t kMaxTop = 20;
inline constexpr int32_t kMaxBias = 1024;  // logit_bias entries of one row

struct StepDescriptor {
  std::vector<int32_t> tokens;  // T entries, 1 <= T <= max_tokens
  std::vector<StepSequence> sequences;
  std::vector<PageDelta> page_deltas;  // applied in order, before page_copies and before the step
  std::vector<PageCopy> page_copies;
  std::vector<StepRow> rows;                    // R entries, 0 <= R <= max_rows
  std::vector<std::pair<int32_t, float>> bias;  // logit_bias entries (token, added to the logit)
  bool operator==(const StepDescriptor&) const = default;
};

struct RowResult {
  int32_t token = -1;  // sampled
  float logprob =
      0;  // natural log, of the distribution after penalties and bias, before temperature and filters
  std::vector<std::pair<int32_t, float>> top;  // (token, logprob), descending
  std::vector<float> logits;
};
struct StepResult {
  uint64_t step = 0;  // as returned by post()
  std::vector<RowResult> rows;
};

}  // namespace ark
