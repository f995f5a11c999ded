// Boxes of channels in memory of a GPU, for transports whose NIC reads and writes it itself. The NIC's way in both
// directions, and who orders what: docs/dma.md, "Memory of GPUs".
#pragma once

#include <memory>

#include "dma/endpoint.h"
#include "engine/cuda/gpu.h"

namespace ark::cuda {

// For an endpoint of this GPU's rank. The memory, and with it the Gpu, goes when no NIC has it registered any more;
// that is context work, which it does for itself. Not `wanted`: the host's memory, as kHostLinksAskedFor says.
dma::DeviceBoxes nic_boxes(std::shared_ptr<Gpu> gpu, bool wanted);

}  // namespace ark::cuda
