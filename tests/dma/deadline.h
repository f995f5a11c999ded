// How long a test waits for what should come at once: longer than any loaded machine takes.
#pragma once

#include <chrono>

#include "dma/wait.h"

namespace ark::dma {

inline Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

}  // namespace ark::dma
