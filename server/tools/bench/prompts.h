// The prompts of a benchmark, drawn from a dataset with a seed.
#pragma once

#include <optional>
#include <vector>

#include "server/text/tokenizer.h"
#include "server/tools/bench/api_client.h"

namespace ark::bench {

// Exactly `options.prompts` of them. Random prompts need no tokenizer: their ids are then small ones that
// every vocabulary has, their text short English words. Throws Error(kUsage) where one is needed, or if the
// dataset does not fit; kBadModel if its file is broken.
std::vector<Prompt> make_prompts(const ServeOptions& options, const text::Tokenizer* tokenizer);

// The tokenizer that --tokenizer names: a tokenizer.json, or the folder that holds it.
std::optional<text::Tokenizer> load_tokenizer(const ServeOptions& options);

}  // namespace ark::bench
