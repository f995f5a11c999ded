// Takes dma-bufs in the place of a device that does not, such as rdma_rxe, in a process that preloads it: registers a
// mapping of what the descriptor names. Real transfers then read and write that memory. What they write where peers may
// lies aside until it is flushed, as the writes of a NIC may lie before a GPU sees them.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>

namespace {

struct Taken {
  char* there = nullptr;  // the memory
  char* aside = nullptr;  // what the device writes; null: it does not
  size_t length = 0;
};
std::mutex mutex;
std::map<ibv_mr*, Taken> all;

void* mapped(size_t length, int flags, int file, uint64_t offset) {
  void* at = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, file, static_cast<off_t>(offset));
  return at == MAP_FAILED ? nullptr : at;
}

void forget(const Taken& taken) {
  if (taken.there != nullptr) munmap(taken.there, taken.length);
  if (taken.aside != nullptr) munmap(taken.aside, taken.length);
}

}  // namespace

extern "C" {

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int file, int access) {
  struct stat status = {};
  if (fstat(file, &status) != 0 || offset > static_cast<uint64_t>(status.st_size) ||
      length > static_cast<uint64_t>(status.st_size) - offset || offset % 4096 != iova % 4096) {
    errno = EINVAL;
    return nullptr;
  }
  const bool is_written = (access & IBV_ACCESS_REMOTE_WRITE) != 0;
  Taken taken{static_cast<char*>(mapped(length, MAP_SHARED, file, offset)), nullptr, length};
  if (is_written) taken.aside = static_cast<char*>(mapped(length, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ibv_mr* mr = nullptr;
  if (taken.there != nullptr && (!is_written || taken.aside != nullptr))
    mr = ibv_reg_mr_iova2(pd, is_written ? taken.aside : taken.there, length, iova,
                          static_cast<unsigned>(access));
  if (mr == nullptr) {
    const int error = errno;
    forget(taken);
    errno = error;
    return nullptr;
  }
  const std::lock_guard lock(mutex);
  all[mr] = taken;
  return mr;
}

int ibv_dereg_mr(ibv_mr* mr) {
  static const auto real = reinterpret_cast<int (*)(ibv_mr*)>(dlsym(RTLD_NEXT, "ibv_dereg_mr"));
  const std::lock_guard lock(mutex);
  const int result = real(mr);
  if (const auto found = all.find(mr); result == 0 && found != all.end()) {
    forget(found->second);
    all.erase(found);
  }
  return result;
}

// What has been written until now is seen, in all such memory of the process.
void fake_dmabuf_flush() {
  const std::lock_guard lock(mutex);
  for (auto& [mr, taken] : all) {
    for (size_t at = 0; taken.aside != nullptr && at + 8 <= taken.length; at += 8) {
      // Others read there: only what differs is stored.
      const std::atomic_ref there(*reinterpret_cast<uint64_t*>(taken.there + at));
      const uint64_t word = *reinterpret_cast<volatile uint64_t*>(taken.aside + at);
      if (there.load(std::memory_order_relaxed) != word) there.store(word, std::memory_order_relaxed);
    }
  }
}

// Registrations that are there now.
int fake_dmabuf_count() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(all.size());
}
}
