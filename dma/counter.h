// Monotonic counters: the only way in which ranks and processors tell each other that bytes are there.
//
// Counters are never reset; they are compared by signed difference, so they may wrap: 64-bit ones
// (arrival, completion, credit) in theory, 32-bit ones (phase counters) every few days.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "dma/wait.h"

namespace ark::dma {

// Alone on its cache line. Zero-filled memory is a valid counter at 0, so counters may lie in shared
// memory that nobody constructs. The value comes first: a device that cannot wake sleepers may use the
// first 8 (or 4) bytes as a bare counter.
template <class T>
struct alignas(64) Counter {
  static_assert(std::is_unsigned_v<T> && std::atomic<T>::is_always_lock_free);

  std::atomic<T> value{0};
  std::atomic<uint32_t> asleep{0};  // 1: somebody sleeps, or is about to; also the futex word

  // Publishes everything that the caller wrote before: seq_cst includes the release that pairs with
  // load()'s acquire, and the raises of several writers form one release sequence, so a reader that
  // sees n has the writes of all n raisers. The total order with `asleep` pairs with sleep_once. Who takes the
  // word back wakes all; raises until these have run, and sleep again, ask nothing of the kernel.
  void raise(T by = 1) {
    value.fetch_add(by, std::memory_order_seq_cst);
    if (asleep.load(std::memory_order_seq_cst) != 0 && asleep.exchange(0, std::memory_order_seq_cst) != 0)
      detail::futex_wake_all(asleep);
  }

  // Acquire: after a load that satisfies the wait, the raisers' writes are visible. Pairs with raise().
  T load() const { return value.load(std::memory_order_acquire); }

  static bool has_reached(T seen, T needed) {
    return static_cast<std::make_signed_t<T>>(static_cast<T>(seen - needed)) >= 0;
  }
  bool has_reached(T needed) const { return has_reached(load(), needed); }

  // For wait_until.
  class Reached {
   public:
    Reached(Counter& counter, T needed) : counter_(counter), needed_(needed) {}
    bool operator()() {
      seen_ = counter_.value.load(std::memory_order_seq_cst);  // an acquire, and what sleep_once asks for
      return has_reached(seen_, needed_);
    }
    uint64_t seen() const { return seen_; }
    uint64_t needed() const { return needed_; }
    std::atomic<uint32_t>& sleep_on() { return counter_.asleep; }

   private:
    Counter& counter_;
    T needed_;
    T seen_ = 0;
  };
  Reached reached(T needed) { return Reached(*this, needed); }
};

using Counter32 = Counter<uint32_t>;  // phase counters
using Counter64 = Counter<uint64_t>;  // arrival, completion, credit
static_assert(sizeof(Counter32) == 64 && sizeof(Counter64) == 64);
static_assert(std::is_standard_layout_v<Counter64>);

// Waits until `counter` has reached `needed` (modulo its width).
template <class T>
[[nodiscard]] inline Fault wait_reached(Counter<T>& counter, T needed, const WaitPoint& at,
                                        const WaitContext& context) {
  return wait_until(counter.reached(needed), at, context);
}

}  // namespace ark::dma
