// Layers become repeats: code and phase lists do not grow with depth.
#pragma once

#include "engine/program/program.h"

namespace ark {

// Finds runs of phases that repeat with the same variants, sizes and kinds of operands and folds each into
// one Repeat with an operand table. The unrolled program stays the same. Waits must not be set yet.
void fold_repeats(Program& program);

}  // namespace ark
