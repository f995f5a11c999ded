#include "engine/cuda/gpu.h"

#include "base/error.h"

namespace ark::cuda {

void refuse_unless_resident(Kernel& kernel, const LaunchShape& shape) {
  const int32_t possible = kernel.resident_blocks(shape.threads, shape.shared_bytes);
  if (shape.blocks > 0 && shape.blocks <= possible) return;
  throw Error(Code::kUnsupported, "the loop needs " + std::to_string(shape.blocks) + " blocks of " +
                                      std::to_string(shape.threads) + " threads and " +
                                      std::to_string(shape.shared_bytes) +
                                      " bytes of shared memory at once, but the GPU holds " +
                                      std::to_string(possible) + "; fewer ranks or processors are needed");
}

SharedBlock Gpu::allocate_shared(uint64_t, const std::string&, BlockHandle&) {
  throw Error(Code::kUnsupported, info().name + " shares no memory with other GPUs");
}

SharedBlock Gpu::open_shared(const BlockHandle&, uint64_t) {
  throw Error(Code::kUnsupported, info().name + " reaches no memory of other GPUs");
}

NicBlock Gpu::allocate_for_nic(uint64_t, const std::string&) {
  throw Error(Code::kUnsupported, info().name + " has no memory that a NIC reaches");
}

bool Gpu::flush_nic_writes() noexcept { return false; }

}  // namespace ark::cuda
