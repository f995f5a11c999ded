// Where all lanes of a warp come together.
#pragma once

#include "tests/emulator/core.h"

namespace ark::emulator {

// The lane that comes last runs `all_here` over the `arguments` of all lanes, then all go on. Lanes that meet
// at different calls are reported. `name` is compared by address.
void collective(const char* name, void* argument, Site at, void (*all_here)(Warp&));

}  // namespace ark::emulator
