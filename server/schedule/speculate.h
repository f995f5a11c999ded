// Speculation: tokens that may follow are computed beside the one that is known, in one step; those that the model then
// samples itself were right, and stay. Noise depends on (seed, position, token) only and rows see what is before them
// alone: so a sequence gets the tokens that it gets without.
#pragma once

#include <memory>
#include <vector>

#include "server/schedule/state.h"

namespace ark::schedule {

// Drafts for a step that decodes these sequences, as many as make it give more tokens a second; false: none. With steps
// in flight, whose tokens are not known, it only tells whether there would be any once they are.
bool draft(SchedulerState& state, const std::vector<std::shared_ptr<Sequence>>& decoding);

// A step with drafts has sampled for `index`: whether that follows the sequence's own tokens. Then its keys up to there
// are its own, too.
bool follows(Sequence& s, int32_t index);
// Its rows are taken.
void count_drafts(SchedulerState& state, Sequence& s);

}  // namespace ark::schedule
