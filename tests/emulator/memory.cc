#include "tests/emulator/memory.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "base/error.h"

namespace ark::emulator {
namespace {

constexpr uint64_t kAlignment = 1024;
constexpr uint64_t kDistance = 256;  // at least, between two allocations

uint64_t footprint(uint64_t bytes) { return (bytes + kDistance + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void* reserve(uint64_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw Error(Code::kExhausted, "emulator: no address space for its memory");
  return p;
}

Memory::Memory()
    : region_(static_cast<std::byte*>(reserve(kSize))), states_(static_cast<uint8_t*>(reserve(kSize))) {}

Memory::~Memory() {
  munmap(region_, kSize);
  munmap(states_, kSize);
}

std::byte* Memory::allocate(uint64_t bytes, int gpu, std::string name, uint8_t state) {
  std::lock_guard lock(mutex_);
  std::byte* begin;
  if (auto found = free_.find(footprint(bytes)); found != free_.end()) {
    begin = found->second;
    free_.erase(found);
  } else {
    if (used_ + footprint(bytes) > kSize)
      throw Error(Code::kExhausted, "emulator: out of memory for " + name);
    begin = region_ + used_;
    used_ += footprint(bytes);
  }
  const bool is_host = gpu == kHost;
  std::memset(begin, is_host ? 0 : 0xff, bytes);
  std::memset(states(begin), kAllocated | state | (is_host ? kInitialised : 0), bytes);
  allocations_[begin] = {begin, bytes, gpu, std::move(name), 0, true};
  return begin;
}

void Memory::release(std::byte* begin) {
  std::lock_guard lock(mutex_);
  auto found = allocations_.find(begin);
  ARK_CHECK(found != allocations_.end(), "emulator: release of memory that is not allocated");
  const uint64_t bytes = found->second.bytes;
  std::memset(states(begin), 0, bytes);
  free_.emplace(footprint(bytes), begin);
  allocations_.erase(found);
}

void Memory::map(std::byte* begin, uint64_t bytes, std::string name) {
  std::lock_guard lock(mutex_);
  const auto at =
      allocations_.try_emplace(begin, Allocation{begin, bytes, kHost, std::move(name), 0, false}).first;
  ARK_CHECK(at->second.gpu == kHost && at->second.bytes == bytes, "emulator: a mapping of part of something");
  ++at->second.maps;
}

void Memory::unmap(std::byte* begin) {
  std::lock_guard lock(mutex_);
  const auto found = allocations_.find(begin);
  ARK_CHECK(found != allocations_.end() && found->second.maps > 0,
            "emulator: unmap of memory that is not mapped");
  if (--found->second.maps == 0 && !found->second.is_allocated) allocations_.erase(found);
}

void Memory::initialise(const void* begin, uint64_t bytes) {
  uint8_t* s = states(begin);
  for (uint64_t i = 0; i < bytes; i++) s[i] = (s[i] | kInitialised) & ~(kWritten | kReadConstant);
}

void Memory::make_constant(const void* begin, uint64_t bytes) {
  uint8_t* s = states(begin);
  for (uint64_t i = 0; i < bytes; i++) s[i] |= kConstant;
}

const Memory::Allocation* Memory::before(const void* p) const {
  auto next = allocations_.upper_bound(static_cast<const std::byte*>(p));
  return next == allocations_.begin() ? nullptr : &std::prev(next)->second;
}

std::optional<int> Memory::owner(const void* p) const {
  std::lock_guard lock(mutex_);
  const Allocation* a = before(p);
  if (!a || p >= a->begin + a->bytes) return std::nullopt;
  return a->gpu;
}

std::string Memory::describe(const void* p) const {
  std::lock_guard lock(mutex_);
  const Allocation* a = before(p);
  if (!a) return "no allocation";
  const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(p) - a->begin);
  if (offset < a->bytes) {
    return a->name + "+" + std::to_string(offset) +
           (a->gpu == kHost ? " (host)" : " (gpu " + std::to_string(a->gpu) + ")");
  }
  return offset - a->bytes < (1 << 16)
             ? std::to_string(offset - a->bytes) + " bytes past the end of " + a->name
             : "no allocation";
}

}  // namespace ark::emulator
