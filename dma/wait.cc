#include "dma/wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>

#include "base/machine.h"
#include "dma/wake_count.h"

namespace ark::dma {

SpinPolicy SpinPolicy::adapted(int busy_threads) {
  const int cpus = ark::available_cpus();
  // One CPU must be left for the HTTP threads and the pump, or a long spin delays the very writer it awaits.
  if (busy_threads < cpus) return {16'000};
  if (busy_threads == cpus) return {4'000};
  return {16};
}

namespace detail {
namespace {

std::atomic<uint64_t> wakes{0};

timespec to_timespec(int64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace

// Futexes without the PRIVATE flag: the word may lie in memory shared with another process.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) {
  const timespec timeout = to_timespec(timeout_ns);
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake_all(const std::atomic<uint32_t>& word) {
  wakes.fetch_add(1, std::memory_order_relaxed);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void blind_sleep(int64_t ns) {
  const timespec time = to_timespec(ns);
  nanosleep(&time, nullptr);
}

}  // namespace detail

uint64_t wakes_so_far() { return detail::wakes.load(std::memory_order_relaxed); }

}  // namespace ark::dma
