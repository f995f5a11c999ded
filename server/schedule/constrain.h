// Sequences whose text must have a form: what their next token may be goes to the sampler as a mask. It follows from
// the token before it; so a step with such a row is alone in flight, as one with drafts is.
#pragma once

#include "server/schedule/sequence.h"

namespace ark::schedule {

// Of a sequence without generated tokens: nothing where its text may be any. Throws what the constraint throws, and
// kInvalidArgument where no token of the vocabulary begins such a text.
void begin_constraint(Sequence& s, int32_t vocabulary);

inline bool is_constrained(const Sequence& s) { return s.constraint != nullptr; }

// Its last token, which is no end token, continues the text. Returns whether that ends here: nothing may follow. Throws
// as above.
bool follow_constraint(Sequence& s);

void add_mask(const Sequence& s, StepDescriptor& step, StepRow& row);

}  // namespace ark::schedule
