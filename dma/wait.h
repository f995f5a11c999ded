// The one wait of ark: spins briefly, then sleeps; always with an abort word and a deadline.
//
// It works on memory shared between processes too: the sleep is a futex on the awaited counter's own
// word, so an idle loop costs next to no CPU and a raise wakes it at once. Writers that cannot wake
// (a GPU, a NIC) are found by short timed sleeps instead. It never yields: beside another program each
// sched_yield gives away a time slice of milliseconds, while who sleeps is woken at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

#include "dma/fault.h"

namespace ark::dma {

inline int64_t steady_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// A point on the steady clock, in nanoseconds.
class Deadline {
 public:
  static Deadline never() { return Deadline(std::numeric_limits<int64_t>::max()); }
  static Deadline after(std::chrono::nanoseconds time) { return Deadline(steady_ns() + time.count()); }

  bool passed() const { return !is_never() && steady_ns() >= at_ns_; }
  bool is_never() const { return at_ns_ == std::numeric_limits<int64_t>::max(); }
  // Never negative; max() for never().
  int64_t left_ns() const { return is_never() ? at_ns_ : std::max<int64_t>(0, at_ns_ - steady_ns()); }

 private:
  explicit Deadline(int64_t at_ns) : at_ns_(at_ns) {}
  int64_t at_ns_;
};

enum class AbortReason : uint32_t { kNone, kShutdown, kDeadRank, kFault };

// The abort word: raised once, by anyone; ends every wait that was given it. The first reason wins.
struct alignas(64) AbortFlag {
  // Low 8 bits: AbortReason; upper 24: rank + 1, or 0. Zero-filled memory is a valid flag.
  std::atomic<uint32_t> word{0};

  // Release/acquire: who sees the flag also sees what the raiser wrote before it (e.g. its Fault).
  void raise(AbortReason reason, int rank = -1) {
    uint32_t none = 0;
    const auto value = static_cast<uint32_t>(reason) | static_cast<uint32_t>(rank + 1) << 8;
    word.compare_exchange_strong(none, value, std::memory_order_acq_rel);
  }
  bool raised() const { return word.load(std::memory_order_acquire) != 0; }
  AbortReason reason() const { return static_cast<AbortReason>(word.load(std::memory_order_acquire) & 0xff); }
  int rank() const { return static_cast<int>(word.load(std::memory_order_acquire) >> 8) - 1; }
  // Only while nobody waits (parked loops).
  void clear() { word.store(0, std::memory_order_release); }
};

// How many times a wait looks, a pause instruction between two looks, before it sleeps.
struct SpinPolicy {
  uint32_t spins = 32;

  // For `busy_threads` threads of this machine that compute or wait at the same time: long spins only
  // where each has a CPU for itself and one is left over. Honours the CPU affinity mask.
  static SpinPolicy adapted(int busy_threads);
};

namespace detail {
// A sleeper looks at abort word and deadline at least this often.
inline constexpr int64_t kSleepSliceNs = 20'000'000;
}  // namespace detail

// What the waits of one thread took, of those that did not end at their first look.
struct WaitMeter {
  int64_t slept_ns = 0;       // of all waits,
  int64_t sleeps = 0;         // and how often the thread left its core for it
  int64_t peers_ns = 0;       // of waits for what other ranks do, spins and sleeps
  int64_t longest_ns = 0;     // of these,
  int32_t longest_peer = -1;  // and for which rank

  // One sleep, of a slice at most: who comes back much later than timers are was ready, or was stopped.
  void count_sleep(int64_t ns) {
    constexpr int64_t kSwitch = 2'000;  // who is back sooner never left its core
    slept_ns += ns < 2 * detail::kSleepSliceNs ? ns : detail::kSleepSliceNs;
    sleeps += ns >= kSwitch;
  }
  void count_peer(int peer, int64_t ns) {
    peers_ns += ns;
    if (ns <= longest_ns) return;
    longest_ns = ns;
    longest_peer = peer;
  }
};

struct WaitContext {
  const AbortFlag* abort = nullptr;  // may be null: nothing aborts this wait
  Deadline deadline = Deadline::never();
  SpinPolicy spin;
  WaitMeter* meter = nullptr;  // the calling thread's, or null
};

namespace detail {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Longest sleep on memory whose writer cannot wake us.
inline constexpr int64_t kBlindSleepNs = 500'000;

// Of a word in private or shared memory.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns);
void futex_wake_all(const std::atomic<uint32_t>& word);
void blind_sleep(int64_t ns);

template <class Ready>
void sleep_once(Ready& ready, const Deadline& deadline, uint32_t turn) {
  if constexpr (requires { ready.sleep_on(); }) {
    // seq_cst, as is ready()'s look: either the writer sees our announcement after its raise and takes it back, so that
    // the kernel wakes us, or lets nobody sleep on a word that is no longer 1; or our look sees the raise. Pairs with
    // Counter::raise. Nobody takes back what a sleep that ended by itself has announced: the next raise wakes in vain.
    std::atomic<uint32_t>& asleep = ready.sleep_on();
    asleep.exchange(1, std::memory_order_seq_cst);
    if (!ready()) futex_wait(asleep, 1, std::min(kSleepSliceNs, deadline.left_ns()));
  } else {
    const int64_t nap = std::min<int64_t>(kBlindSleepNs, int64_t{20'000} << std::min(turn, 5u));
    blind_sleep(std::min(nap, deadline.left_ns()));
  }
}

template <class Ready>
Fault stopped(const Ready& ready, FaultKind kind, const WaitPoint& at) {
  Fault fault{kind, at};
  if constexpr (requires { ready.seen(); }) {
    fault.seen = ready.seen();
    fault.needed = ready.needed();
  }
  return fault;
}

template <class Ready>
Fault look_until(Ready& ready, const WaitPoint& at, const WaitContext& context) {
  const auto aborted = [&] { return context.abort != nullptr && context.abort->raised(); };
  for (uint32_t turn = 0; turn < context.spin.spins; ++turn) {
    relax();
    if (ready()) return {};
    if (aborted()) return stopped(ready, FaultKind::kAborted, at);
  }
  for (uint32_t turn = 0;; ++turn) {
    if (ready()) return {};
    if (aborted()) return stopped(ready, FaultKind::kAborted, at);
    if (context.deadline.passed()) return stopped(ready, FaultKind::kDeadline, at);
    const int64_t asleep = context.meter ? steady_ns() : 0;
    sleep_once(ready, context.deadline, turn);
    if (context.meter) context.meter->count_sleep(steady_ns() - asleep);
  }
}

template <class Ready>
Fault wait_slowly(Ready& ready, const WaitPoint& at, const WaitContext& context) {
  if (!context.meter || at.peer < 0) return look_until(ready, at, context);
  const int64_t begin = steady_ns();
  const Fault fault = look_until(ready, at, context);
  context.meter->count_peer(at.peer, steady_ns() - begin);
  return fault;
}

}  // namespace detail

// Waits until `ready()` returns true. `ready` is any callable; it may also have
//   uint64_t seen(), needed()   for the fault's figures,
//   std::atomic<uint32_t>& sleep_on()   to be woken instead of polled (see Counter::raise); it then looks by seq_cst.
// A ready() that has come true wins over abort and deadline. Never throws, never allocates.
template <class Ready>
[[nodiscard]] inline Fault wait_until(Ready&& ready, const WaitPoint& at, const WaitContext& context) {
  if (ready()) [[likely]]
    return {};
  return detail::wait_slowly(ready, at, context);
}

}  // namespace ark::dma
