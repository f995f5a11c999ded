#include "engine/cuda/nic_boxes.h"

#include <utility>

#include "engine/cuda/peer_links.h"

namespace ark::cuda {
namespace {

struct Held {
  std::shared_ptr<Gpu> gpu;
  std::shared_ptr<void> block;

  ~Held() {
    const Gate::Work work = gpu->gate().enter();
    block.reset();
  }
};

}  // namespace

dma::DeviceBoxes nic_boxes(std::shared_ptr<Gpu> gpu, bool wanted) {
  if (!wanted) return {.why_not = kHostLinksAskedFor};
  dma::DeviceBoxes boxes;
  boxes.allocate = [gpu](const std::string& name, uint64_t bytes) {
    const Gate::Work work = gpu->gate().enter();
    NicBlock block = gpu->allocate_for_nic(bytes, name);
    gpu->clear(block.address, bytes);  // what was there before is nobody else's business
    dma::NamedMemory memory;
    memory.file = std::move(block.file);
    memory.region = {reinterpret_cast<std::byte*>(block.address), bytes};
    memory.owner = std::shared_ptr<Held>(new Held{gpu, std::move(block.owner)});
    return memory;
  };
  boxes.settle = [gpu] { return gpu->flush_nic_writes(); };
  return boxes;
}

}  // namespace ark::cuda
