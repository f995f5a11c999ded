#include "engine/plain/parallel_for.h"

#include <atomic>
#include <exception>
#include <latch>
#include <mutex>

#include "engine/cpu/pool.h"

namespace ark {
namespace {

void run_all(int64_t n, const std::function<void(int64_t)>& f) {
  for (int64_t i = 0; i < n; ++i) f(i);
}

// Indices are taken one at a time: tiles of a kernel are large enough, and unequal.
void run_shared(int threads, int64_t n, const std::function<void(int64_t)>& f) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;  // guards failure
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) f(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next.store(n, std::memory_order_relaxed);
    }
  };
  const int helpers = static_cast<int>(std::min<int64_t>(threads, n)) - 1;
  std::latch done(helpers);  // count_down releases what the helpers wrote, wait acquires it
  // Not pinned: nobody looks here whether others use the CPUs.
  Pool::shared().launch(helpers, {}, [&](int) {
    work();
    done.count_down();
  });
  work();
  done.wait();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

ParallelFor parallel_for(int threads) {
  if (threads < 2) return run_all;
  return [threads](int64_t n, const std::function<void(int64_t)>& f) {
    if (n < 2) return run_all(n, f);
    run_shared(threads, n, f);
  };
}

}  // namespace ark
