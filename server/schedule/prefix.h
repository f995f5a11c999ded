// Pages that others have computed already: a sequence that begins as another one holds the same pages.
#pragma once

#include "server/schedule/state.h"

namespace ark::schedule {

// Whose pages a sequence shares: those of the same client and salt. Words that its first page is found by; none for
// those who have neither.
std::vector<int32_t> scope_of(const GenerateRequest& request);

// How many pages a sequence need not compute itself: up to the first token whose logits it needs.
int32_t wanted_pages(const Sequence& s, int32_t page_size);

// Holds the pages that are there of what `s` would compute next. Pages may be of the step that is being built: a step
// appends all its keys and values before it reads any.
void take_prefix(SchedulerState& state, Sequence& s);

// Looks up how much of those that wait for a slot is there, and holds nothing: of who is new, and of a few that have
// not been looked up for a while.
void look_ahead(SchedulerState& state);

// Publishes the pages that `s` has completed. One that somebody else has published meanwhile is exchanged for it, but
// not while a step is `building` that writes it.
void share_pages(SchedulerState& state, Sequence& s, bool building);

// `page`, of which `s` is the holder, has its next tokens' keys and values: publishes it.
void append_page(SchedulerState& state, Sequence& s, int32_t page);

}  // namespace ark::schedule
