// The wire of transports whose peers' memory is mapped here (local, shm): a copy and a raise, at once.
#pragma once

#include <memory>

#include "dma/transport.h"

namespace ark::dma {

std::unique_ptr<Wire> make_mapped_wire(const WireMap& map);

}  // namespace ark::dma
