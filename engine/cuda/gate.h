// The one gate of a GPU: context work (allocation, copies, modules, launches) happens only while no loop
// runs, because much of it waits for running kernels, and a persistent kernel may not end for hours.
//
// A loop is asked to park, and parks at the next step border; work then goes on. Loops that were parked so
// are launched again by their executors' next post() or poll(). Lock order: an executor takes the gate first,
// its own locks after.
//
// A loop that does not end, not even aborted, makes the GPU lost for this process: whatever waits for a
// running kernel would never return. New work is refused then, and what the GPU holds is left to the driver,
// which takes it back when the process ends.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

namespace ark::cuda {

class Gate {
 public:
  // A running launch that can be asked to end soon. Both calls from any thread, under the gate's lock; they
  // take no lock of their own. A launch that died has ended.
  class Loop {
   public:
    virtual ~Loop() = default;
    virtual void request_park() noexcept = 0;
    // Waits for the end, within limits of the loop's own. False: it does not end.
    virtual bool await_end() noexcept = 0;
  };

  // Held while context work is done.
  class Work {
   public:
    explicit Work(Gate& gate) : lock_(gate.mutex_), gate_(gate) { gate.park_all(); }
    // The launch that this work has made runs on when the work is over.
    void started(Loop& loop) { gate_.loops_.push_back(&loop); }
    // Ends the loop's registration; for loops that have ended.
    void ended(Loop& loop) { std::erase(gate_.loops_, &loop); }

   private:
    std::unique_lock<std::mutex> lock_;
    Gate& gate_;
  };

  // Waits for running loops to park. One thread at a time.
  Work enter() { return Work(*this); }

  // Any thread. Once lost, for ever: nothing may wait for the GPU any more.
  bool is_lost() const { return lost_; }
  void lose() { lost_ = true; }

 private:
  void park_all() {
    for (Loop* loop : loops_) loop->request_park();
    for (Loop* loop : loops_) {
      if (!is_lost() && !loop->await_end()) lose();
    }
    loops_.clear();
  }

  std::atomic<bool> lost_{false};
  std::mutex mutex_;
  std::vector<Loop*> loops_;  // launches that may still run
};

}  // namespace ark::cuda
