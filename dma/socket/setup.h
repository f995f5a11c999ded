// Transport `socket`: ranks anywhere that TCP connects, two connections between any two. Formats: docs/dma.md.
#pragma once

#include <memory>

#include "dma/transport.h"

namespace ark::dma {

// `address`: of this machine, where ranks on others reach it; "" : ranks on this machine alone do, by loopback.
std::unique_ptr<Transport> make_socket_transport(const std::string& address);

}  // namespace ark::dma
