// The process-wide pool of loop threads. A gang of n bodies gets n threads at the same time (they wait for
// each other, so fewer would hang); idle threads sleep on a condition variable and cost nothing.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/machine.h"

namespace ark {

class Pool {
 public:
  static Pool& shared();
  Pool() = default;
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Runs body(0) .. body(count - 1) on `count` threads, soon; returns at once. Bodies must not throw. Member
  // i is pinned to the i-th of `seats`; empty: none is.
  void launch(int count, std::span<const CpuList> seats, const std::function<void(int)>& body);
  // The calling thread, one of the pool's, from now on runs on these CPUs alone, or (empty) on any.
  static void pin(const CpuList& cpus);

 private:
  void run(std::stop_token stop);

  std::mutex mutex_;  // guards all below
  std::condition_variable_any wake_;
  std::vector<std::function<void()>> work_;  // jobs without a thread yet
  int idle_ = 0;                             // threads that wait for work
  std::vector<std::jthread> threads_;
};

}  // namespace ark
