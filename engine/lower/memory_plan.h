// Where a program's buffers lie in the rank's arenas.
#pragma once

#include "engine/program/program.h"

namespace ark {

// First fit over the unrolled step. A buffer lives from its writer to its last reader; its memory is given to
// another one only where that one's writer waits for the last reader anyway, so that reuse costs no wait.
Binding plan_memory(const Program& program);

}  // namespace ark
