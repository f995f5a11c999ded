// Transport `verbs-ud`: RDMA's unreliable datagrams.
#pragma once

#include <memory>

#include "base/log.h"
#include "dma/plugin.h"

namespace ark::dma {

std::unique_ptr<Transport> make_datagram_transport(int rank, const PortWish& wish, decltype(&log_line) log);

}  // namespace ark::dma
