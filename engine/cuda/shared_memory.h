// Device memory that other GPUs map, of this process or another, or that NICs reach: CUDA's virtual memory management.
#pragma once

#include "engine/cuda/driver_context.h"
#include "engine/cuda/gpu.h"

namespace ark::cuda {

// One GPU's; as Gpu's calls of these names. `driver` outlives the blocks.
SharedBlock allocate_shared(const Driver& driver, uint64_t bytes, const std::string& what,
                            BlockHandle& handle);
SharedBlock open_shared(const Driver& driver, const BlockHandle& handle, uint64_t bytes);

// Why this GPU can share no memory; empty if it can.
std::string why_not_shared(const Driver& driver);

// As Gpu's.
NicBlock allocate_for_nic(const Driver& driver, uint64_t bytes, const std::string& what);

// Why no NIC can exchange with this GPU's memory, as far as the driver says; empty if one can.
std::string why_not_by_nic(const Driver& driver);

// The GPU, or what waits for a flag of the host's, may see what a NIC has written later than the host is told of it.
bool needs_flush(const Driver& driver);

}  // namespace ark::cuda
