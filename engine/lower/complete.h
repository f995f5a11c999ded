// What makes a lowered program whole, in this order: repeats, memory, waits.
#pragma once

#include "engine/program/program.h"

namespace ark {

// Finds runs of phases that repeat with the same variants, sizes and kinds of operands (layers) and folds each into
// one Repeat with an operand table: code and phase lists do not grow with depth. The unrolled program stays the same.
void fold_repeats(Program& program);

// Where the buffers lie in the rank's arenas: first fit over the unrolled step. A buffer lives from its writer to its
// last reader; its memory is given to another one only where that one's writer waits for the last reader anyway, so
// that reuse costs no wait.
Binding plan_memory(const Program& program);

// Sets the waits of all phases: on the last writer of what a phase reads, on the last reader and writer of the memory
// that it writes, on messages and credits. As few as the program order of the processors allows: a wait on one instance
// covers all earlier ones (see program.h), also those of the previous step.
void set_waits(Program& program, const Binding& binding);

}  // namespace ark
