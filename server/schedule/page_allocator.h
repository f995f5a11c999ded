// KV pages: who holds which, and when a returned page may be used again. Scheduler thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace ark::schedule {

// Invariant, checked by counts(): free + retiring + held == total.
class PageAllocator {
 public:
  explicit PageAllocator(int32_t pages);

  // A page nobody reads or writes any more, or -1 if there is none right now.
  int32_t take();
  // The holder gives `page` back; steps up to `last_step` may still touch it.
  void give_back(int32_t page, uint64_t last_step);
  // Steps up to `step` are done: what they alone held back becomes free.
  void step_done(uint64_t step);

  struct Counts {
    int32_t free, retiring, held, total;
  };
  Counts counts() const;
  // Pages that take() can return now or once all steps in flight are done.
  int32_t obtainable() const { return static_cast<int32_t>(free_.size() + retiring_.size()); }

 private:
  struct Retiring {
    int32_t page;
    uint64_t last_step;
  };
  int32_t total_;
  uint64_t done_ = 0;
  std::vector<int32_t> free_;      // a stack: recently used pages are warm
  std::deque<Retiring> retiring_;  // not ordered by step
};

}  // namespace ark::schedule
