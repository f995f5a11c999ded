#include "engine/cuda/nic_boxes.h"

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "dma/blob.h"
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

// Fills the least slot that there is.
using Sample = std::array<uint64_t, 8>;

// Not what memory has been cleared to, nor the same between any other two.
Sample sample_of(int from, int to) {
  Sample words{};
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = ((static_cast<uint64_t>(from) << 32 | static_cast<uint64_t>(to)) * words.size() + i + 1) *
               0x9e3779b97f4a7c15;
  return words;
}

std::string between(int from, int to) {
  return "what a NIC brings from GPU memory of rank " + std::to_string(from) + " to that of rank " +
         std::to_string(to);
}

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

void try_nic_boxes(Gpu& gpu, dma::Group& group, uint32_t channel, dma::Deadline deadline) {
  const int own = group.rank();
  std::vector<int> peers;
  for (int peer = 0; peer < group.size(); ++peer)
    if (peer != own && group.endpoint().why_staged(peer) == "") peers.push_back(peer);
  const auto check = [&](const dma::Fault& fault, int from, int to) {
    if (!fault) return;
    if (const std::string why = group.death(); !why.empty()) throw Error(Code::kUnavailable, why);
    const std::string trouble = group.trouble();
    const std::string why = between(from, to) +
                            " does not arrive: " + (trouble.empty() ? fault.text() : trouble) +
                            "; ARK_GPU_LINKS=host takes memory of the host";
    group.report_dead(own, why);  // a closed connection alone would not say it
    throw Error(Code::kUnavailable, why);
  };
  const dma::WaitContext context{&group.abort(), deadline, {}};
  {
    const Gate::Work work = gpu.gate().enter();
    for (const int peer : peers) {
      const Sample sample = sample_of(own, peer);
      gpu.upload(reinterpret_cast<uint64_t>(group.sender(peer, channel).slot(0)),
                 std::as_bytes(std::span(sample)));
    }
  }
  for (const int peer : peers)
    check(group.sender(peer, channel).commit(0, 0, sizeof(Sample), context), own, peer);
  for (const int peer : peers) check(group.receiver(peer, channel).wait(1, context), peer, own);
  std::vector<std::string> why(static_cast<std::size_t>(group.size()));
  {
    const Gate::Work work = gpu.gate().enter();
    for (const int peer : peers) {
      Sample sample{};
      gpu.download(std::as_writable_bytes(std::span(sample)),
                   reinterpret_cast<uint64_t>(group.receiver(peer, channel).slot(0)));
      if (sample != sample_of(peer, own)) why[peer] = between(peer, own) + " is not what was sent";
    }
  }
  dma::BlobWriter told;
  for (const std::string& text : why) told.text(text);
  const std::vector<std::string> all = group.bootstrap().all_gather(told.take(), deadline);
  for (const int peer : peers) {
    dma::BlobReader blob(all[peer], "rank " + std::to_string(peer) + ": what NICs bring it");
    std::string theirs;
    for (int rank = 0; rank < group.size(); ++rank) {
      const std::string_view text = blob.text();
      if (rank == own) theirs = escaped(text, 300);
    }
    blob.end();
    if (theirs.empty()) theirs = why[peer];
    if (!theirs.empty()) group.endpoint().stage(peer, theirs);
  }
}

}  // namespace ark::cuda
