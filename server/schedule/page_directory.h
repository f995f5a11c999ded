// Which pages hold what: found by the tokens and by the page before, compared token by token. The scheduler's thread
// writes it; others look pages up, copy them without holding anything up, and then ask whether they are still the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace ark::schedule {

class PageDirectory {
 public:
  static constexpr int32_t kNoPage = -1;

  explicit PageDirectory(int32_t pages);

  // The page with these contents behind `parent` (kNoPage: as the first), or kNoPage.
  int32_t find(int32_t parent, std::span<const int32_t> contents) const;
  // It is not published, and find() knows no such page. `parent` is published.
  void publish(int32_t page, int32_t parent, std::span<const int32_t> contents);
  // Steps have written all of it: others may read it.
  void complete(int32_t page);
  // No longer found, before anything writes it. None of those that are found has it for its parent.
  void unpublish(int32_t page);

  // ---- any thread
  struct Entry {
    int32_t page = kNoPage;
    uint64_t version = 0;
  };
  // The complete pages of `page_size` tokens each that a sequence of these begins with; `scope`: whose (prefix.h).
  std::vector<Entry> find_run(std::span<const int32_t> scope, std::span<const int32_t> tokens,
                              int32_t page_size) const;
  // Whether what was read of the page since it was found is what it was published with.
  bool is_current(const Entry& entry) const;

 private:
  struct Page {
    int32_t parent = kNoPage;
    bool is_complete = false;
    std::vector<int32_t> contents;             // empty: not published
    mutable std::atomic<uint64_t> version{0};  // counts unpublish(); readers add nothing to it
  };
  int32_t find_locked(int32_t parent, std::span<const int32_t> contents) const;

  mutable std::mutex mutex_;  // guards all but the versions
  std::vector<Page> pages_;
  std::unordered_multimap<uint64_t, int32_t> published_;  // by hash; the contents decide
};

// What a page is found by, behind its parent: its tokens, and of the first one also whose it is.
std::vector<int32_t> page_contents(std::span<const int32_t> scope, std::span<const int32_t> tokens,
                                   int32_t index, int32_t page_size);

}  // namespace ark::schedule
