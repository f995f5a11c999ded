#include "server/schedule/page_allocator.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace ark::schedule {
PageAllocator::PageAllocator(int32_t pages) : pages_(static_cast<std::size_t>(pages)), directory_(pages) {
  for (int32_t page = pages; page-- > 0;) free_.push_back(page);
}

int32_t PageAllocator::take() {
  if (free_.empty()) {
    // One with steps in flight is passed over. So are those before it in its sequence: they were given back later.
    const auto oldest =
        std::ranges::find_if(cached_, [&](const auto& at) { return pages_[at.second].last_step <= done_; });
    if (oldest == cached_.end()) return kNoPage;
    const int32_t page = oldest->second;
    cached_.erase(oldest);
    unpublish(page);
    free_.push_back(page);
  }
  const int32_t page = free_.back();
  free_.pop_back();
  pages_[page].holders = 1;
  pages_[page].last_step = 0;
  ++held_;
  ++holders_;
  return page;
}

void PageAllocator::give_back(int32_t page, uint64_t last_step) {
  ARK_CHECK(page >= 0 && page < static_cast<int32_t>(pages_.size()),
            "page " + std::to_string(page) + " is none of this allocator's");
  Page& p = pages_[page];
  ARK_CHECK(p.holders > 0, "page " + std::to_string(page) + " comes back more often than it was taken");
  p.last_step = std::max(p.last_step, last_step);
  --holders_;
  if (--p.holders > 0) return;
  --held_;
  if (!p.is_published) return release(page);
  p.cached_at = ++clock_;
  cached_.emplace(p.cached_at, page);
}

void PageAllocator::release(int32_t page) {
  if (pages_[page].last_step <= done_)
    free_.push_back(page);
  else
    retiring_.push_back(page);
}

void PageAllocator::step_done(uint64_t step) {
  done_ = std::max(done_, step);
  std::erase_if(retiring_, [&](int32_t page) {
    if (pages_[page].last_step > done_) return false;
    free_.push_back(page);
    return true;
  });
  complete_pages();
}

void PageAllocator::hold(int32_t page) {
  Page& p = pages_[page];
  if (p.holders++ == 0) {
    cached_.erase(p.cached_at);
    ++held_;
  }
  ++holders_;
}

void PageAllocator::publish(int32_t page, int32_t parent, std::span<const int32_t> contents,
                            uint64_t written_by) {
  pages_[page].is_published = true;
  directory_.publish(page, parent, contents);
  filling_.push_back({page, written_by});
  complete_pages();
}

void PageAllocator::step_posted(uint64_t step) {
  for (Filling& one : filling_)
    if (one.written_by == kNextStep) one.written_by = step;
}

void PageAllocator::complete_pages() {
  std::erase_if(filling_, [&](const Filling& one) {
    if (one.written_by > done_) return false;
    directory_.complete(one.page);
    return true;
  });
}

void PageAllocator::unpublish(int32_t page) {
  pages_[page].is_published = false;
  directory_.unpublish(page);
  std::erase_if(filling_, [&](const Filling& one) { return one.page == page; });
}

void PageAllocator::forget() {
  for (std::size_t page = 0; page < pages_.size(); ++page)
    if (pages_[page].is_published) unpublish(static_cast<int32_t>(page));
  for (const auto& at : cached_) release(at.second);
  cached_.clear();
}

PageAllocator::Counts PageAllocator::counts() const {
  const auto size = [](const auto& list) { return static_cast<int32_t>(list.size()); };
  const Counts c{size(free_), size(retiring_), size(cached_), held_, size(pages_), holders_};
  ARK_CHECK(c.free + c.retiring + c.cached + c.held == c.total, "pages are lost");
  return c;
}

}  // namespace ark::schedule
