// That each cache hands back what was written: the induction step that lets a cached row stand for a token.
#pragma once

#include "importer/decoder/rewrite.h"

namespace ark::decoder {

// For every cache of the signature: its output holds the past and the new tokens in the layout of its input,
// and the new tokens' features are those that attention used in place of past ones. Throws Refusal.
void check_caches(Rewrite& r);

// For each block, which elements of the file's cached rows its pages hold. `by_factor`: keys that attention
// reads by a factor, which holds only if the clean-ups take the factor out of them: settle_factors() forgets
// the places of those that `tokens`, the final graph, does not make by rotation.
std::vector<CacheSpec> cache_specs(Rewrite& r, std::vector<bool>& by_factor);
void settle_factors(std::vector<CacheSpec>& specs, const std::vector<bool>& by_factor, const Graph& tokens);

}  // namespace ark::decoder
