// The waits of a program's phases.
#pragma once

#include "engine/program/program.h"

namespace ark {

// Sets the waits of all phases: on the last writer of what a phase reads, on the last reader and writer of
// the memory that it writes, on messages and credits. As few as the program order of the processors allows: a
// wait on one instance covers all earlier ones (see program.h), also those of the previous step.
void set_waits(Program& program, const Binding& binding);

}  // namespace ark
