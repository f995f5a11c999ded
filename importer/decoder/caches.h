// That each cache hands back what was written: the induction step that lets a cached row stand for a token.
#pragma once

#include "importer/decoder/rewrite.h"

namespace ark::decoder {

// For every cache of the signature: its output holds the past and the new tokens in the layout of its input,
// and the new tokens' features are those that attention used in place of past ones. Throws Refusal.
void check_caches(Rewrite& r);

}  // namespace ark::decoder
