// Rules -> pushdown automaton.
#pragma once

#include "server/text/budget.h"
#include "server/text/grammar/expression.h"
#include "server/text/grammar/pushdown.h"

namespace ark::text::grammar {

// Only what `root` leads to is assembled. Throws kInvalidArgument where no text is of the grammar, or where a rule
// begins with itself: the message begins with `what` and the rule's name.
Pushdown assemble(const Rules& rules, RuleId root, std::string_view what, Budget& budget);

// The parts of it that need no rules (pushdown_trim.cc), in this order. Takes out whatever leads to no text; false
// where nothing is left.
bool trim(Pushdown& automaton, Budget& budget);
// A node that calls a rule in which it can stand again before a byte is read, or kReturnNode where there is none.
NodeId find_left_recursion(const Pushdown& automaton, Budget& budget);
void pass_over_splits(Pushdown& automaton);
void classify_bytes(Pushdown& automaton);

}  // namespace ark::text::grammar
