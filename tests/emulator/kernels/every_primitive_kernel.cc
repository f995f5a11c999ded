// The host compiler's view of every primitive, instrumented; and it runs.
#include "tests/emulator/kernels/every_primitive.h"
