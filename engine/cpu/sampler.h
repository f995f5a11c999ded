// Sampling of one row of logits: a pure function, the same for every driver and every rank.
//
// Order: logit_bias, the mask (-infinity for what may not come) and penalties change the logits; log-probabilities are
// those of the changed logits;
// temperature; top_k, top_p, min_p keep a set; Gumbel-max picks from it: argmax of logit / temperature +
// g(token), where g depends on (seed, position, token) only (arXiv:1611.01144). So the pick is exact, and
// independent of batch, rank and engine. Where a logit is NaN or infinity,
// or all are -infinity, token is -1 and log-probabilities are NaN.
#pragma once

#include <cstdint>
#include <span>

#include "engine/run/mailbox.h"
#include "engine/run/step.h"

namespace ark {

// Floats of room that sample_row needs beside the logits.
int64_t sampler_scratch(int64_t vocabulary);

// `logits` are f32 [vocabulary]. `history`: the sequence's tokens up to and with the row's own (read only if
// row.sampling.needs_history(); the first row.prompt_length are prompt). `position`: index in the sequence of
// the token to be sampled, i.e. the number of tokens before it. `bias`, `mask`: the row's own logit_bias entries and
// words. `scratch`: as sampler_scratch says. has_logits stays 0: copying raw logits is the caller's business.
RowRecord sample_row(std::span<const float> logits, const StepRow& row, std::span<const int32_t> history,
                     int64_t position, std::span<const BiasEntry> bias, std::span<const uint32_t> mask,
                     std::span<float> scratch);

// The same for drivers that keep no scratch; raw logits included if the row wants them.
RowResult sample_row(std::span<const float> logits, const StepRow& row, std::span<const int32_t> history,
                     int64_t position, std::span<const std::pair<int32_t, float>> bias,
                     std::span<const uint32_t> mask);

}  // namespace ark
