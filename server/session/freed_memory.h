// Memory that was freed, and that the allocator keeps: by threads, so each keeps what its largest work took.
#pragma once

#include <atomic>
#include <cstddef>

namespace ark::session {

std::size_t resident_bytes();  // of this process

// Safe from any thread.
class FreedMemory {
 public:
  static constexpr std::size_t kMostGrown = std::size_t{32} << 20;

  // After work that takes much for a while. Gives what is free back to the system if the process has grown by so much
  // since it last was: that takes milliseconds.
  void give_back();

 private:
  std::atomic<std::size_t> resident_{0};  // then, or since where it was less
};

}  // namespace ark::session
