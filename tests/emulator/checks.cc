// Whether an access is one that a kernel may make.
#include <link.h>

#include "tests/emulator/core.h"

namespace ark::emulator {
namespace {

// Code and constants of the program and its shared objects: kernels read tables of theirs.
bool is_in_image(const void* p) {
  auto visit = [](dl_phdr_info* info, size_t, void* address) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
      const auto& header = info->dlpi_phdr[i];
      if (header.p_type == PT_LOAD &&
          reinterpret_cast<uint64_t>(address) - (info->dlpi_addr + header.p_vaddr) < header.p_memsz) {
        return 1;
      }
    }
    return 0;
  };
  return dl_iterate_phdr(visit, const_cast<void*>(p)) != 0;
}

}  // namespace

void Core::check_all(const void* p, uint64_t bytes, Access access, Place place, Site at) {
  if (is_own_stack(p)) return;
  const bool is_write = access == Access::kWrite;
  auto refuse = [&](Fault fault, const std::string& what) {
    std::string text = std::to_string(bytes) + " bytes " + (is_write ? "written to " : "read from ") +
                       memory.describe(p) + ": " + what;
    if (!at.line) text += " at " + describe(place);
    fail(fault, text, at);
  };
  if (!memory.contains(p)) {
    const LaunchRequest& request = fiber->warp->block->grid->request;
    const bool is_parameter = static_cast<uint64_t>(static_cast<const std::byte*>(p) -
                                                    request.parameter.data()) < request.parameter.size();
    if (is_parameter && !is_write) return;
    if (!memory.owner(p) && !(is_in_image(p) && !is_write)) {
      refuse(Fault::kHostMemory, "no kernel may reach that address");
    }
    return;
  }
  uint8_t* states = memory.states(p);
  const Needs n = needs(p, access);
  for (uint64_t i = 0; i < bytes; i++) {
    const int lacks = n.all & ~states[i], has = n.none & states[i];
    if (lacks & Memory::kAllocated) refuse(Fault::kBounds, "byte " + std::to_string(i) + " is nobody's");
    if (has & Memory::kShared) refuse(Fault::kBounds, "another block's shared memory");
    if (has & Memory::kConstant) refuse(Fault::kConstant, "it is constant");
    if (has & Memory::kReadConstant) refuse(Fault::kConstant, "ld_nc has read it");
    if (has & Memory::kInFlight) refuse(Fault::kInFlight, "an asynchronous copy has not delivered it");
    if (lacks & Memory::kInitialised) refuse(Fault::kUninitialised, "nobody wrote it");
  }
  if (is_write) {
    for (uint64_t i = 0; i < bytes; i++) states[i] |= Memory::kInitialised | Memory::kWritten;
  }
}

void Core::check_constant(const void* p, uint64_t bytes, Site at) {
  if (!memory.contains(p)) fail(Fault::kConstant, "ld_nc of " + memory.describe(p), at);
  uint8_t* states = memory.states(p);
  for (uint64_t i = 0; i < bytes; i++) {
    if (states[i] & Memory::kWritten) {
      fail(Fault::kConstant, "ld_nc of " + memory.describe(p) + ", which a kernel has written", at);
    }
    states[i] |= Memory::kReadConstant;
  }
}

void Core::remember(const Actor& actor, const void* p, uint64_t bytes, Access access, Place place) {
  if (!options.detector || !memory.contains(p) || !bytes) return;
  const Race* race = access == Access::kWrite ? detector.write(actor, p, bytes, place)
                                              : detector.read(actor, p, bytes, place);
  if (race) fail(*race);
}

void Core::check_aligned(const void* p, uint64_t alignment, Place place, Site at) {
  if (reinterpret_cast<uint64_t>(p) % alignment == 0) return;
  std::string text = memory.describe(p) + " is not a multiple of " + std::to_string(alignment);
  if (!at.line) text += " at " + describe(place);
  fail(Fault::kAlignment, text, at);
}

void Core::check_shared(const void* p, uint64_t bytes, uint64_t alignment, Site at) {
  const Block& block = *fiber->warp->block;
  const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(p) - block.shared);
  const uint64_t size = block.grid->request.shared_bytes;
  if (offset > size || size - offset < bytes) {
    fail(Fault::kBounds,
         std::to_string(bytes) + " bytes at " + memory.describe(p) + ", not within the block's shared memory",
         at);
  }
  check_aligned(p, alignment, 0, at);
}

}  // namespace ark::emulator
