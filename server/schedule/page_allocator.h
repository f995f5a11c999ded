// KV pages: who holds which, what they hold, and when a returned one may be used again. Scheduler thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "server/schedule/page_directory.h"

namespace ark::schedule {

// A page may have several holders once it is published: what it holds is then complete and never written again. When
// the last of them gives it back it stays cached, until it is held again or its memory is needed.
//
// Who holds a published page holds those before it, too, and gives them back after it: so pages end behind the ones
// that continue them, and the oldest cached page never has one behind it.
class PageAllocator {
 public:
  static constexpr int32_t kNoPage = PageDirectory::kNoPage;

  explicit PageAllocator(int32_t pages);

  // A page nobody reads or writes any more, or kNoPage if there is none right now: a free one, or else the one that has
  // been cached for longest.
  int32_t take();
  // A holder gives `page` back; steps up to `last_step` may still touch it.
  void give_back(int32_t page, uint64_t last_step);
  // Steps up to `step` are done: what they alone held back becomes free.
  void step_done(uint64_t step);

  // As of PageDirectory.
  int32_t find(int32_t parent, std::span<const int32_t> contents) const {
    return directory_.find(parent, contents);
  }
  // One holder more of a published page.
  void hold(int32_t page);
  // From now on find() returns it. Its holder holds `parent`, and find() knows no such page. `written_by`: the
  // last step that writes it, after which others may read it, too.
  static constexpr uint64_t kNextStep = ~uint64_t{0};  // the one that is posted next
  void publish(int32_t page, int32_t parent, std::span<const int32_t> contents, uint64_t written_by = 0);
  // The step that was being built has this number.
  void step_posted(uint64_t step);
  // No page holds what it was published with: cached ones become free.
  void forget();

  struct Counts {
    int32_t free, retiring, cached, held, total;
    int64_t holders;
  };
  // Throws Error(kInternal) unless free + retiring + cached + held == total.
  Counts counts() const;
  const PageDirectory& directory() const { return directory_; }
  // Pages that take() can return now or once all steps in flight are done.
  int32_t obtainable() const {
    return static_cast<int32_t>(free_.size() + retiring_.size() + cached_.size());
  }

 private:
  struct Page {
    int32_t holders = 0;
    uint64_t last_step = 0;  // that may touch it, of those who gave it back
    uint64_t cached_at = 0;  // key in cached_
    bool is_published = false;
  };
  struct Filling {
    int32_t page;
    uint64_t written_by;
  };
  void release(int32_t page);  // free, or retiring
  void unpublish(int32_t page);
  void complete_pages();

  std::vector<Page> pages_;
  uint64_t done_ = 0, clock_ = 0;
  int32_t held_ = 0;
  int64_t holders_ = 0;
  std::vector<int32_t> free_;           // a stack: recently used pages are warm
  std::deque<int32_t> retiring_;        // not ordered by step
  std::map<uint64_t, int32_t> cached_;  // without a holder, by when the last one went
  std::vector<Filling> filling_;        // published, and perhaps not written yet
  PageDirectory directory_;
};

}  // namespace ark::schedule
