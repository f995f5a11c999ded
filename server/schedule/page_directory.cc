#include "server/schedule/page_directory.h"

#include <algorithm>

#include "base/error.h"

namespace ark::schedule {
namespace {

uint64_t hash_of(int32_t parent, std::span<const int32_t> contents) {  // FNV-1a, by words
  uint64_t h = 1469598103934665603u ^ static_cast<uint32_t>(parent);
  for (const int32_t word : contents) h = (h * 1099511628211u) ^ static_cast<uint32_t>(word);
  return h ^ (h >> 29);
}

}  // namespace

PageDirectory::PageDirectory(int32_t pages) : pages_(static_cast<std::size_t>(pages)) {}

int32_t PageDirectory::find_locked(int32_t parent, std::span<const int32_t> contents) const {
  const auto [begin, end] = published_.equal_range(hash_of(parent, contents));
  for (auto at = begin; at != end; ++at)
    if (const Page& p = pages_[at->second]; p.parent == parent && std::ranges::equal(p.contents, contents))
      return at->second;
  return kNoPage;
}

int32_t PageDirectory::find(int32_t parent, std::span<const int32_t> contents) const {
  const std::lock_guard lock(mutex_);
  return find_locked(parent, contents);
}

void PageDirectory::publish(int32_t page, int32_t parent, std::span<const int32_t> contents) {
  const std::lock_guard lock(mutex_);
  Page& p = pages_[page];
  ARK_CHECK(p.contents.empty(), "page " + std::to_string(page) + " is published twice");
  p.parent = parent;
  p.is_complete = false;
  p.contents.assign(contents.begin(), contents.end());
  published_.emplace(hash_of(parent, contents), page);
}

void PageDirectory::complete(int32_t page) {
  const std::lock_guard lock(mutex_);
  pages_[page].is_complete = !pages_[page].contents.empty();
}

void PageDirectory::unpublish(int32_t page) {
  const std::lock_guard lock(mutex_);
  Page& p = pages_[page];
  if (p.contents.empty()) return;
  const auto [begin, end] = published_.equal_range(hash_of(p.parent, p.contents));
  published_.erase(std::find_if(begin, end, [&](const auto& at) { return at.second == page; }));
  p.contents.clear();
  p.is_complete = false;
  // Before the steps that write it are posted; pairs with the read-modify-write in is_current().
  p.version.fetch_add(1, std::memory_order_release);
}

std::vector<PageDirectory::Entry> PageDirectory::find_run(std::span<const int32_t> scope,
                                                          std::span<const int32_t> tokens,
                                                          int32_t page_size) const {
  std::vector<Entry> run;
  const auto most = static_cast<int32_t>(tokens.size()) / page_size;
  const std::lock_guard lock(mutex_);
  for (int32_t i = 0, parent = kNoPage; i < most; ++i) {
    parent = find_locked(parent, page_contents(scope, tokens, i, page_size));
    if (parent == kNoPage || !pages_[parent].is_complete) break;
    run.push_back({parent, pages_[parent].version.load(std::memory_order_relaxed)});
  }
  return run;
}

bool PageDirectory::is_current(const Entry& entry) const {
  // A read that releases, too, keeps what was read before it before it: who has seen a byte of a later step sees the
  // version that went before that step.
  return pages_[entry.page].version.fetch_add(0, std::memory_order_acq_rel) == entry.version;
}

std::vector<int32_t> page_contents(std::span<const int32_t> scope, std::span<const int32_t> tokens,
                                   int32_t index, int32_t page_size) {
  const auto own =
      tokens.subspan(static_cast<std::size_t>(index * page_size), static_cast<std::size_t>(page_size));
  std::vector<int32_t> contents(own.begin(), own.end());
  if (index == 0) contents.insert(contents.end(), scope.begin(), scope.end());
  return contents;
}

}  // namespace ark::schedule
