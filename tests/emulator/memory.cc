#include "tests/emulator/memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
  if (found->second.file != 0) {
    if (--found->second.users > 0) return;
    std::memset(states(begin), 0, bytes);
    mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
    allocations_.erase(found);
    return;  // the addresses are not used again
  }
  std::memset(states(begin), 0, bytes);
  free_.emplace(footprint(bytes), begin);
  allocations_.erase(found);
}

namespace {

constexpr uint64_t kPage = 4096;

uint64_t inode_of(int file) {
  struct stat status = {};
  return fstat(file, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

std::byte* Memory::place(int file, uint64_t bytes, Allocation what, uint8_t state) {
  used_ = (used_ + kPage - 1) / kPage * kPage;
  std::byte* begin = region_ + used_;
  const uint64_t whole = (footprint(bytes) + kPage - 1) / kPage * kPage;
  if (used_ + whole > kSize ||
      mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
    throw Error(Code::kExhausted, "emulator: out of memory for " + what.name);
  used_ += whole;
  std::memset(states(begin), kAllocated | state, bytes);
  what.begin = begin;
  what.bytes = bytes;
  what.file = inode_of(file);
  allocations_[begin] = std::move(what);
  return begin;
}

std::byte* Memory::share(uint64_t bytes, int gpu, std::string name, int& file) {
  std::lock_guard lock(mutex_);
  file = memfd_create("emulated GPU memory", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0)
    throw Error(Code::kExhausted, "emulator: no file of memory for " + name);
  std::byte* begin = place(file, bytes, {.gpu = gpu, .name = std::move(name)}, 0);
  std::memset(begin, 0xff, bytes);
  return begin;
}

std::byte* Memory::open(int file, uint64_t bytes, std::string name) {
  std::lock_guard lock(mutex_);
  const uint64_t inode = inode_of(file);
  ARK_CHECK(inode != 0, "emulator: no file of memory");
  for (auto& [begin, allocation] : allocations_) {
    if (allocation.file != inode) continue;
    ARK_CHECK(allocation.bytes == bytes, "emulator: part of shared memory");
    ++allocation.users;
    return allocation.begin;
  }
  return place(file, bytes, {.gpu = kElsewhere, .name = std::move(name)}, kInitialised);
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

bool Memory::is_written_outside(const void* p) const {
  std::lock_guard lock(mutex_);
  const Allocation* a = before(p);
  return a && p < a->begin + a->bytes && (a->gpu == kHost || a->file != 0);
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
