// What programs and steps are made of where host and device must agree: constants, and records that the host writes and
// the loops read as they lie in memory, or the other way round. Plain words in the same places everywhere; compiled by
// NVRTC too (C++17): no std here.
#pragma once

#if defined(__CUDACC__)
#define ARK_BOTH __host__ __device__
#else
#define ARK_BOTH
#endif

namespace ark {

// ---- tiles (see OpCode)

inline constexpr int kElementTile = 2048;   // elements
inline constexpr int kMatMulRows = 32;      // rows of x a tile
inline constexpr int kSendTile = 16 << 10;  // bytes
inline constexpr int kItemTokens = 16;      // query tokens of an attention item, at most; more on GPUs
inline constexpr int kPanelWidth = 64;      // columns of a weight's panel

// What codes of a block of panels stand for.
enum class BlockTerms : unsigned char {
  kZeros,      // (code - zero) * scale: f32 scales, u8 zeros
  kOffsets,    // fma(code, scale, offset): f32 scales, f32 offsets
  kOffsets16,  // the same, both f16
  kScales16,   // (code - middle_of(bits)) * scale: f16 scales
};
ARK_BOTH constexpr bool has_zeros(BlockTerms terms) {
  return terms == BlockTerms::kZeros || terms == BlockTerms::kScales16;
}
ARK_BOTH constexpr bool has_halves(BlockTerms terms) { return terms >= BlockTerms::kOffsets16; }
// The code that stands for 0 where blocks have no other zero.
ARK_BOTH constexpr int middle_of(int bits) { return 1 << (bits - 1); }
// Bytes of a column's scale, and of its scale with its zero or offset: in a block of codes zeros and offsets begin
// `panel` times the one from its start, codes `panel` times the other.
ARK_BOTH constexpr int scale_bytes(BlockTerms terms) { return has_halves(terms) ? 2 : 4; }
ARK_BOTH constexpr int terms_bytes(BlockTerms terms) {
  if (has_zeros(terms)) return terms == BlockTerms::kZeros ? 5 : 2;
  return 2 * scale_bytes(terms);
}

// How a head's keys, or values, of a page's tokens are stored (engine/program/kv_codec.h): codes of all of them, which
// are the numbers themselves or, with a scale for each token, what it is multiplied by; then these scales, f32.
struct KvFormat {
  int bits = 32;      // of an element
  float largest = 0;  // with scales: the code that a token's largest number gets; 0: no scales
  ARK_BOTH constexpr bool has_scales() const { return largest > 0; }
  // Of `tokens` of `dim` elements; both parts end at multiples of 16, as vectors that copy pages want.
  ARK_BOTH constexpr long long code_bytes(long long tokens, long long dim) const {
    return (tokens * dim * bits / 8 + 15) / 16 * 16;
  }
  ARK_BOTH constexpr long long head_bytes(long long tokens, long long dim) const {
    return code_bytes(tokens, dim) + (has_scales() ? (tokens * 4 + 15) / 16 * 16 : 0);
  }
};
// A token's largest number below this is taken for zero: its scale's reciprocal could be infinite.
inline constexpr float kKvLeast = 0x1p-100f;

// Applied in the order bias, activation (one at most), residual.
enum EpilogueBits : unsigned {
  kEpilogueBias = 1,
  kEpilogueResidual = 2,
  kEpilogueRelu = 4,
  kEpilogueSilu = 8,
  kEpilogueGelu = 16,
  kEpilogueGeluTanh = 32,
  kEpilogueActivations = kEpilogueRelu | kEpilogueSilu | kEpilogueGelu | kEpilogueGeluTanh,
};

// Keys that a tile of attention takes on a device, by the position of the query: the more, the further behind, so that
// there are at most kMaxSplits such splits. Whatever the longest sequence may be, and whatever else is in a step.
inline constexpr int kSplitKeys = 512, kMaxSplits = 8;
ARK_BOTH constexpr int split_keys(int position) {
  int keys = kSplitKeys;
  while (position / kMaxSplits >= keys) keys *= 2;
  return keys;
}
// Splits of no more than so many keys: of the longest sequence, and of shorter ones.
ARK_BOTH constexpr int most_splits(int keys) {
  return keys > kSplitKeys * (kMaxSplits - 1) ? kMaxSplits : (keys + kSplitKeys - 1) / kSplitKeys;
}

// Of `count` tokens from `position` on, those whose splits are as large as the first one's.
ARK_BOTH constexpr int alike_tokens(int position, int count) {
  const int alike = split_keys(position) * kMaxSplits - position;
  return alike < count ? alike : count;
}
// Items of so many tokens, of which one has at most `most`.
ARK_BOTH constexpr int count_items(int position, int count, int most) {
  if (count == 1) return 1;  // as most sequences of most steps have
  int items = 0;
  while (count > 0) {
    const int alike = alike_tokens(position, count);
    items += (alike + most - 1) / most;
    position += alike, count -= alike;
  }
  return items;
}
// Tokens of the first one of them.
ARK_BOTH constexpr int item_tokens(int position, int count, int most) {
  const int alike = alike_tokens(position, count);
  return alike < most ? alike : most;
}

// One of a step's pieces of attention work. Items never cross sequences; splits of an item's tokens are of one size.
struct AttentionItem {
  int slot = 0;
  int first = 0;     // index into the step's tokens
  int count = 0;     // 1 .. what item_tokens() was given
  int position = 0;  // of token `first` in its sequence
};

// ---- a step, as the host asks for it

// In StepDescriptor::tokens: "the token that this sequence's slot sampled last", still on the device.
inline constexpr int kFeedbackToken = -1;
inline constexpr int kMaxTop = 20;     // log-probabilities that a row may report
inline constexpr int kMaxBias = 1024;  // logit_bias entries of a row

struct SamplingParams {
  float temperature = 1;        // 0 = greedy: the largest logit, the smallest id among equals
  float top_p = 1;              // (0, 1]; kept: the smallest set of largest probabilities whose sum >= top_p
  float min_p = 0;              // [0, 1]; kept: probability >= min_p * largest probability
  int top_k = 0;                // 0 = off
  float presence_penalty = 0;   // [-2, 2]; over generated tokens, OpenAI's definition
  float frequency_penalty = 0;  // [-2, 2]
  // > 0; over prompt and generated tokens, CTRL's definition (arXiv:1909.05858)
  float repetition_penalty = 1;
  unsigned long long seed = 0;  // of Philox; noise depends on (seed, position, token id) only: Gumbel-max
  ARK_BOTH bool needs_history() const {
    return presence_penalty != 0 || frequency_penalty != 0 || repetition_penalty != 1;
  }
};

// A run of tokens of one sequence: prefill chunk (count > 1) or decode (count == 1).
struct StepSequence {
  int slot = 0;   // [0, max_slots): where the device keeps this sequence's page table, history, last token
  int first = 0;  // index into StepDescriptor::tokens
  int count = 0;  // >= 1; sequences tile `tokens` in order
  int kv_length = 0;  // tokens cached before this step = position of the first token
};

// Entry `index` of slot's page table becomes `page`. Pages hold page_size tokens of all caches.
struct PageDelta {
  int slot = 0, index = 0, page = 0;
};
// Copies a whole page (all caches) before the step runs: copy on write of shared prefixes.
struct PageCopy {
  int from = 0, to = 0;
};

enum RowFlags : unsigned {
  kWantToken = 1,    // sample a token, remember it as the slot's last
  kWantLogprob = 2,  // log-probability of the sampled token, or of `target` if that is >= 0
  kWantLogits = 4,   // the raw f32 logits [vocabulary] (tests, tools)
  kTentative = 8,    // do not remember it: of a slot's rows with tokens all but one say so
};

// A row of logits that is wanted: after the token at index `token`.
struct StepRow {
  int token = 0;  // index into tokens
  int slot = 0;
  unsigned flags = kWantToken;
  int target = -1;        // report this token's logprob (prompt logprobs), -1 = the sampled one's
  int top = 0;            // also report the `top` largest logprobs, <= kMaxTop
  int prompt_length = 0;  // of the slot's history, how many tokens are prompt (penalties)
  int bias_first = 0, bias_count = 0;  // range of StepDescriptor::bias; count at most kMaxBias
  int mask_first = 0, mask_words = 0;  // range of StepDescriptor::masks: what may come; none: any token
  SamplingParams sampling;
};

struct BiasEntry {
  int token = 0;
  float value = 0;
};

// ---- the mailbox (engine/run/mailbox.h)

// Arrays of a slot, in this order.
enum class StepArray : unsigned {
  kTokens,
  kSequences,
  kPageDeltas,
  kPageCopies,
  kRows,
  kBias,
  kMasks,
  kCount
};

// Fixed head of a slot. Arrays follow at `offset` bytes from the record's start.
struct StepRecord {
  struct Extent {
    unsigned offset = 0, count = 0;
  };
  unsigned long long step = 0;  // number, from 1
  unsigned bytes = 0;           // of the record and its arrays
  unsigned processors = 0;      // as of StepDescriptor
  Extent arrays[static_cast<unsigned>(StepArray::kCount)];

  ARK_BOTH const Extent& extent(StepArray which) const { return arrays[static_cast<unsigned>(which)]; }
};

// What one row of a step came to.
struct RowRecord {
  int token = -1;
  float logprob = 0;
  int top_count = 0;
  int has_logits = 0;  // they lie in the result slot's logits part
  int top_tokens[kMaxTop] = {};
  float top_logprobs[kMaxTop] = {};
};

static_assert(sizeof(AttentionItem) == 16 && sizeof(StepSequence) == 16 && sizeof(PageDelta) == 12 &&
              sizeof(PageCopy) == 8 && sizeof(BiasEntry) == 8 && sizeof(StepRow) == 80);
static_assert(sizeof(StepRecord) == 72 && alignof(StepRecord) == 8 && sizeof(RowRecord) == 176);

}  // namespace ark
