#include "server/schedule/page_allocator.h"

#include <algorithm>

#include "base/error.h"

namespace ark::schedule {

PageAllocator::PageAllocator(int32_t pages) : total_(pages) {
  for (int32_t page = pages; page-- > 0;) free_.push_back(page);
}

int32_t PageAllocator::take() {
  if (free_.empty()) return -1;
  const int32_t page = free_.back();
  free_.pop_back();
  return page;
}

void PageAllocator::give_back(int32_t page, uint64_t last_step) {
  ARK_CHECK(page >= 0 && page < total_, "page " + std::to_string(page) + " is none of this allocator's");
  ARK_CHECK(obtainable() < total_, "more pages come back than were taken");
  if (last_step <= done_)
    free_.push_back(page);
  else
    retiring_.push_back({page, last_step});
}

void PageAllocator::step_done(uint64_t step) {
  done_ = std::max(done_, step);
  std::erase_if(retiring_, [&](const Retiring& r) {
    if (r.last_step > done_) return false;
    free_.push_back(r.page);
    return true;
  });
}

PageAllocator::Counts PageAllocator::counts() const {
  const auto free = static_cast<int32_t>(free_.size()), retiring = static_cast<int32_t>(retiring_.size());
  return {free, retiring, total_ - free - retiring, total_};
}

}  // namespace ark::schedule
