// Memory of emulated GPUs: one reserved range of addresses, with a state byte per byte.
//
// Device memory and shared memory are poisoned (all ones: NaN as a float) and start uninitialised;
// allocations keep a distance, so that a step over an end is seen. Mapped memory that lies elsewhere in the
// process (regions of dma) is known by its range only. Thread-safe except for states(), which the running
// kernels own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace ark::emulator {

inline constexpr int kHost = -1;            // owner of mapped memory
inline constexpr int kElsewhere = 1 << 20;  // of memory of a GPU in another world

class Memory {
 public:
  enum State : uint8_t {
    kAllocated = 1,
    kInitialised = 2,
    kConstant = 4,       // no kernel writes it
    kShared = 8,         // some block's shared memory
    kInFlight = 16,      // an asynchronous copy will write it
    kWritten = 32,       // by a kernel, since the host wrote it
    kReadConstant = 64,  // by ld_nc, since the host wrote it
  };

  Memory();
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Owner `gpu` or kHost; host memory is zeroed and initialised. Aligned to 1024.
  std::byte* allocate(uint64_t bytes, int gpu, std::string name, uint8_t state = 0);
  void release(std::byte* begin);
  // Makes memory of the process reachable as the host's; once for each GPU that maps it.
  void map(std::byte* begin, uint64_t bytes, std::string name);
  void unmap(std::byte* begin);
  // Memory of `gpu` that GPUs of other worlds and processes reach too: a file of memory, which the caller closes. What
  // they store there is not seen by the detector. release() as of allocate().
  std::byte* share(uint64_t bytes, int gpu, std::string name, int& file);
  // What such a file holds: at its own address where it is of this world, once more to be released then.
  std::byte* open(int file, uint64_t bytes, std::string name);
  // The host has written these bytes.
  void initialise(const void* begin, uint64_t bytes);
  // No kernel may write them from now on.
  void make_constant(const void* begin, uint64_t bytes);
  // Whose memory it is; nullopt if no allocation holds p.
  std::optional<int> owner(const void* p) const;
  // Whether others than this world's kernels may write it: the host's, and what is shared.
  bool is_written_outside(const void* p) const;
  // "name+offset" for reports.
  std::string describe(const void* p) const;

  bool contains(const void* p) const { return offset(p) < kSize; }
  uint64_t offset(const void* p) const {
    return static_cast<uint64_t>(static_cast<const std::byte*>(p) - region_);
  }
  uint8_t* states(const void* p) { return states_ + offset(p); }
  // Whether `bytes` states have all bits of `all` and none of `none`.
  static bool match(const uint8_t* states, uint64_t bytes, uint8_t all, uint8_t none) {
    constexpr uint64_t kEach = 0x0101010101010101u;
    const uint64_t wanted = all * kEach, looked_at = (all | none) * kEach;
    auto differ = [&]<class Word>(Word word) {
      std::memcpy(&word, states, sizeof word);
      bytes -= sizeof word, states += sizeof word;
      return ((word ^ wanted) & static_cast<Word>(looked_at)) != 0;
    };
    while (bytes >= 8)
      if (differ(uint64_t{})) return false;
    if (bytes >= 4 && differ(uint32_t{})) return false;
    while (bytes > 0)
      if (differ(uint8_t{})) return false;
    return true;
  }

  static constexpr uint64_t kSize = uint64_t{1} << 34;

 private:
  struct Allocation {
    std::byte* begin = nullptr;
    uint64_t bytes = 0;
    int gpu = kHost;
    std::string name;
    int maps = 0;              // how often it is mapped
    bool is_allocated = true;  // not only mapped
    uint64_t file = 0;         // inode; 0: of no file
    int users = 1;             // of a file
  };
  // With mutex_: `bytes` of a file.
  std::byte* place(int file, uint64_t bytes, Allocation what, uint8_t state);
  // The last one that begins at or before p; null if none.
  const Allocation* before(const void* p) const;

  mutable std::mutex mutex_;
  std::byte* region_ = nullptr;
  uint8_t* states_ = nullptr;  // one per byte of the region; pages appear when touched
  uint64_t used_ = 0;
  std::map<const std::byte*, Allocation> allocations_;  // by begin; also mapped ranges outside the region
  std::multimap<uint64_t, std::byte*> free_;            // released ranges by size
};

// Reserves address space that reads as zeros; throws Error(kExhausted).
void* reserve(uint64_t bytes);

}  // namespace ark::emulator
