// Pages that others have computed already: a sequence that begins as another one holds the same pages.
#pragma once

#include "server/schedule/state.h"

namespace ark::schedule {

// Holds the pages that are there of what `s` would compute next, up to the first token whose logits it needs. Pages may
// be of the step that is being built: a step appends all its keys and values before it reads any.
void take_prefix(SchedulerState& state, Sequence& s);

// Publishes the pages that `s` has completed. One that somebody else has published meanwhile is exchanged for it, but
// not while a step is `building` that writes it.
void share_pages(SchedulerState& state, Sequence& s, bool building);

}  // namespace ark::schedule
