// Boxes of channels in memory of a GPU, for transports whose NIC reads and writes it itself. The NIC's way in both
// directions, and who orders what: docs/dma.md, "Memory of GPUs".
#pragma once

#include <memory>

#include "dma/group.h"
#include "engine/cuda/gpu.h"

namespace ark::cuda {

// For an endpoint of this GPU's rank. The memory, and with it the Gpu, goes when no NIC has it registered any more;
// that is context work, which it does for itself. Not `wanted`: the host's memory, as kHostLinksAskedFor says.
dma::DeviceBoxes nic_boxes(std::shared_ptr<Gpu> gpu, bool wanted);

// Collective, before anything else is sent on `channel`, which is by_devices, nor by a GPU: a message to each peer from
// GPU memory to GPU memory. Where it has arrived and other bytes are there, the pair's boxes are staged from now on.
// Throws Error(kUnavailable) that says how to do without where one ends the group, or does not arrive.
void try_nic_boxes(Gpu& gpu, dma::Group& group, uint32_t channel, dma::Deadline deadline);

}  // namespace ark::cuda
