// Whether an access is one that a kernel may make.
#include <link.h>

#include <cstring>

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

// Whether all states have the bits of `all` and none of `none`.
bool match(const uint8_t* states, uint64_t bytes, uint8_t all, uint8_t none) {
  constexpr uint64_t kEach = 0x0101010101010101u;
  auto fits = [&](uint64_t s) { return (s & all * kEach) == all * kEach && (s & none * kEach) == 0; };
  for (; bytes >= 8; bytes -= 8, states += 8) {
    uint64_t s;
    std::memcpy(&s, states, 8);
    if (!fits(s)) return false;
  }
  if (bytes >= 4) {
    uint32_t s;
    std::memcpy(&s, states, 4);
    if (!fits(s | uint64_t{s} << 32)) return false;
    bytes -= 4, states += 4;
  }
  for (; bytes; bytes--, states++) {
    if ((*states & all) != all || (*states & none)) return false;
  }
  return true;
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
  const uint8_t need = is_write || access == Access::kCopySource || !options.detector
                           ? Memory::kAllocated
                           : Memory::kAllocated | Memory::kInitialised;
  const bool own_shared = is_own_shared(p);
  const uint8_t never = Memory::kInFlight | (own_shared ? 0 : Memory::kShared) |
                        (is_write ? Memory::kConstant | Memory::kReadConstant : 0);
  if (!match(states, bytes, need, never)) {
    for (uint64_t i = 0; i < bytes; i++) {
      if (!(states[i] & Memory::kAllocated))
        refuse(Fault::kBounds, "byte " + std::to_string(i) + " is nobody's");
      if ((states[i] & Memory::kShared) && !own_shared)
        refuse(Fault::kBounds, "another block's shared memory");
      if (is_write && (states[i] & Memory::kConstant)) refuse(Fault::kConstant, "it is constant");
      if (is_write && (states[i] & Memory::kReadConstant)) refuse(Fault::kConstant, "ld_nc has read it");
      if (states[i] & Memory::kInFlight)
        refuse(Fault::kInFlight, "an asynchronous copy has not delivered it");
      if ((need & Memory::kInitialised) && !(states[i] & Memory::kInitialised)) {
        refuse(Fault::kUninitialised, "nobody wrote it");
      }
    }
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
