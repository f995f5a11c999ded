// Transport `shm`: ranks are processes of one user on one machine.
#pragma once

#include <memory>

#include "dma/transport.h"

namespace ark::dma {

std::unique_ptr<Transport> make_shm_transport();

}  // namespace ark::dma
