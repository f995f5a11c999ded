#include "dma/region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ark::dma {
namespace {

// At least one page, so that an empty region has an address of its own.
uint64_t whole_pages(uint64_t bytes, PageSize pages) {
  const auto page = pages == PageSize::kHuge ? kHugePage : static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > UINT64_MAX - page) return bytes;  // mmap refuses it
  return bytes == 0 ? page : (bytes + page - 1) / page * page;
}

Memory mapped(int flags, int descriptor, uint64_t bytes, Code code, const std::string& name, PageSize pages) {
  const uint64_t length = whole_pages(bytes, pages);
  void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (address == MAP_FAILED) {
    throw Error(code, "region " + escaped(name) + ": cannot map " + std::to_string(bytes) +
                          " bytes: " + std::strerror(errno));
  }
  // Advice only: failure costs speed or memory.
  if (length >= kHugePage)
    madvise(address, length, pages == PageSize::kSmall ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  Memory memory;
  memory.region = {static_cast<std::byte*>(address), bytes};
  memory.owner = std::shared_ptr<void>(address, [length](void* start) { munmap(start, length); });
  return memory;
}

}  // namespace

Memory allocate_private(uint64_t bytes, const std::string& name, PageSize pages) {
  const int kind = pages == PageSize::kHuge ? MAP_HUGETLB : MAP_NORESERVE;
  return mapped(MAP_PRIVATE | MAP_ANONYMOUS | kind, -1, bytes, Code::kExhausted, name, pages);
}

Memory map_shared(int descriptor, uint64_t bytes, const std::string& name) {
  return mapped(MAP_SHARED, descriptor, bytes, Code::kOs, name, PageSize::kLarge);
}

}  // namespace ark::dma
