#include "server/session/freed_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <fstream>

namespace ark::session {

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

void FreedMemory::give_back() {
  std::size_t now = resident_bytes();
  const std::size_t before = resident_.load(std::memory_order_relaxed);
  if (now > before + kMostGrown) {
    ::malloc_trim(0);
    now = resident_bytes();
  } else if (now >= before) {
    return;
  }
  resident_.store(now, std::memory_order_relaxed);
}

}  // namespace ark::session
