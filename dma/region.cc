#include "dma/region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ark::dma {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

// At least one page, so that an empty region has an address of its own.
uint64_t whole_pages(uint64_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > UINT64_MAX - page) return bytes;  // mmap refuses it
  return bytes == 0 ? page : (bytes + page - 1) / page * page;
}

Memory mapped(int flags, int descriptor, uint64_t bytes, Code code, const std::string& name, PageSize pages) {
  const uint64_t length = whole_pages(bytes);
  void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (address == MAP_FAILED) {
    throw Error(code, "region " + escaped(name) + ": cannot map " + std::to_string(bytes) +
                          " bytes: " + std::strerror(errno));
  }
  // Advice only: failure costs speed or memory.
  if (length >= kHugePage)
    madvise(address, length, pages == PageSize::kLarge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  Memory memory;
  memory.region = {static_cast<std::byte*>(address), bytes};
  memory.owner = std::shared_ptr<void>(address, [length](void* start) { munmap(start, length); });
  return memory;
}

}  // namespace

Memory allocate_private(uint64_t bytes, const std::string& name, PageSize pages) {
  return mapped(MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, bytes, Code::kExhausted, name, pages);
}

Memory map_shared(int descriptor, uint64_t bytes, const std::string& name) {
  return mapped(MAP_SHARED, descriptor, bytes, Code::kOs, name, PageSize::kLarge);
}

}  // namespace ark::dma
