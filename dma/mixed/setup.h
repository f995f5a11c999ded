// Two transports as one: `near` between ranks of one place, `far` between all others.
#pragma once

#include <memory>
#include <string>

#include "dma/transport.h"

namespace ark::dma {

// `place`: equal at ranks that `near` connects. `near` maps its peers' memory (shm) and allocates; `far` adopts what it
// has allocated, and leaves counters to their owners.
std::unique_ptr<Transport> make_mixed_transport(std::string place, std::unique_ptr<Transport> near,
                                                std::unique_ptr<Transport> far);

}  // namespace ark::dma
