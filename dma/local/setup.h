// Transport `local`: ranks are groups of threads in one address space.
#pragma once

#include <memory>
#include <vector>

#include "dma/transport.h"

namespace ark::dma {

// The transports of all ranks at once: they share the list through which they find each other's memory.
std::vector<std::unique_ptr<Transport>> make_local_transports(int size);

}  // namespace ark::dma
