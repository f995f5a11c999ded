// Registered memory: what transfers may read and write, by region id instead of by address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/descriptor.h"

namespace ark::dma {

// The same id names the same role on every rank of a group; sizes may differ.
using RegionId = uint16_t;

// Plain view; `base` is null where the memory is not addressable from here (it is then only a size).
struct Region {
  std::byte* base = nullptr;
  uint64_t bytes = 0;

  // Overflow-safe: no sum of offset and size is formed.
  bool contains(uint64_t offset, uint64_t size) const { return size <= bytes && offset <= bytes - size; }
};

// All regions of one rank, indexed by RegionId. Owned by the endpoint; plain, so that handles copy it.
struct RegionTable {
  const Region* regions = nullptr;
  uint32_t count = 0;

  // Null if there is no such region or [offset, offset + size) does not lie in it.
  const Region* find(RegionId id, uint64_t offset, uint64_t size) const {
    if (id >= count || !regions[id].contains(offset, size)) return nullptr;
    return &regions[id];
  }
};

// Registered memory with its owner: a rank's own, or a peer's as it is reached from here.
struct Memory {
  Region region;
  uint64_t key = 0;             // the transport's own handle (a descriptor, an rkey)
  std::shared_ptr<void> owner;  // unmaps or frees when the last user is gone
  bool on_device = false;       // the host neither reads nor writes it: region.base is the device's address
};

// Memory of a device that a descriptor names (a dma-buf): what a transport takes in order that its device reads and
// writes there itself.
struct NamedMemory {
  Descriptor file;      // stays the caller's, who closes it once the memory is adopted
  uint64_t offset = 0;  // of the region behind the descriptor
  Region region;        // as the device has it
  std::shared_ptr<void> owner;
  bool for_peers = false;  // they write it; else nobody but this rank's transfers, which read it
};

inline constexpr uint64_t kHugePage = uint64_t{2} << 20;
enum class PageSize : uint8_t {
  kHuge,   // of those that the system keeps for such use (vm.nr_hugepages): there may be none
  kLarge,  // huge pages are advised from 2 MiB on
  kSmall,  // memory that is used sparsely: only what is touched counts
};
// Zero-filled pages, rounded up to whole ones; they take memory once they are touched. Throws
// Error(kExhausted).
Memory allocate_private(uint64_t bytes, const std::string& name, PageSize pages = PageSize::kLarge);

// Maps `bytes` of `descriptor`, shared and writable. The mapping outlives the descriptor. Throws Error(kOs).
Memory map_shared(int descriptor, uint64_t bytes, const std::string& name);

}  // namespace ark::dma
