#include "server/schedule/page_allocator.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace ark::schedule {
namespace {

uint64_t hash_of(int32_t parent, std::span<const int32_t> contents) {  // FNV-1a, by words
  uint64_t h = 1469598103934665603u ^ static_cast<uint32_t>(parent);
  for (const int32_t word : contents) h = (h * 1099511628211u) ^ static_cast<uint32_t>(word);
  return h ^ (h >> 29);
}

}  // namespace

PageAllocator::PageAllocator(int32_t pages) : pages_(static_cast<std::size_t>(pages)) {
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
  if (p.contents.empty()) return release(page);
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
}

int32_t PageAllocator::find(int32_t parent, std::span<const int32_t> contents) const {
  const auto [begin, end] = published_.equal_range(hash_of(parent, contents));
  for (auto at = begin; at != end; ++at)
    if (const Page& p = pages_[at->second]; p.parent == parent && std::ranges::equal(p.contents, contents))
      return at->second;
  return kNoPage;
}

void PageAllocator::hold(int32_t page) {
  Page& p = pages_[page];
  if (p.holders++ == 0) {
    cached_.erase(p.cached_at);
    ++held_;
  }
  ++holders_;
}

void PageAllocator::publish(int32_t page, int32_t parent, std::span<const int32_t> contents) {
  pages_[page].parent = parent;
  pages_[page].contents.assign(contents.begin(), contents.end());
  published_.emplace(hash_of(parent, contents), page);
}

void PageAllocator::unpublish(int32_t page) {
  Page& p = pages_[page];
  const auto [begin, end] = published_.equal_range(hash_of(p.parent, p.contents));
  published_.erase(std::find_if(begin, end, [&](const auto& at) { return at.second == page; }));
  p.contents.clear();
}

void PageAllocator::forget() {
  published_.clear();
  for (Page& p : pages_) p.contents.clear();
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
