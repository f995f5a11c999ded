// Runs a token graph the slowest way: one sequence from its start, every row wanted, attention by definition,
// reals in double. The oracle of recognition before any engine is involved.
#pragma once

#include <span>

#include "importer/decoder.h"

namespace ark::test {

// Logits [tokens, vocabulary] (f32) of one sequence. Throws Error if the graph has an operator it does not
// know.
Tensor run_tokens(const DecoderModel& model, std::span<const int64_t> ids);

}  // namespace ark::test
