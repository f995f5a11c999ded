#include "server/schedule/prefix.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/sha256.h"

namespace ark::schedule {
namespace {

constexpr int32_t kLooks = 64;      // pages that are looked up between two steps, beside those of who is new
constexpr int64_t kLookEvery = 16;  // steps after which they are looked up again

int32_t parent_of(const Sequence& s, int32_t index) {
  return index > 0 ? s.pages[index - 1] : PageAllocator::kNoPage;
}

std::vector<int32_t> contents_of(const Sequence& s, int32_t index, int32_t size) {
  return page_contents(s.scope, s.tokens, index, size);
}

// How many pages of one that waits are there. It may hold none of them later: others may need their memory.
int32_t pages_there(const SchedulerState& state, const Sequence& s) {
  const int32_t size = state.limits.page_size, most = wanted_pages(s, size);
  int32_t pages = 0;
  for (int32_t page = PageAllocator::kNoPage; pages < most; ++pages) {
    page = state.pages.find(page, contents_of(s, pages, size));
    if (page == PageAllocator::kNoPage) break;
  }
  return pages;
}

}  // namespace

std::vector<int32_t> scope_of(const GenerateRequest& request) {
  if (!request.scope.empty()) return request.scope;
  if (request.client == 0 && request.cache_salt.empty()) return {};
  Sha256 sum;
  sum.add_field(request.owner.empty() ? std::to_string(request.client) : request.owner);
  sum.add_field(request.cache_salt);
  const std::string digest = sum.digest();
  std::vector<int32_t> words(digest.size() / sizeof(int32_t));
  std::memcpy(words.data(), digest.data(), digest.size());
  return words;
}

int32_t wanted_pages(const Sequence& s, int32_t page_size) {
  const bool is_scored = s.request.prompt_logprobs && s.prompt_rows + 1 < s.prompt_size();
  const int32_t most = is_scored ? s.prompt_rows : static_cast<int32_t>(s.tokens.size()) - 1;
  return most / page_size;
}

void append_page(SchedulerState& state, Sequence& s, int32_t page) {
  const int32_t size = state.limits.page_size;
  state.pages.publish(page, parent_of(s, s.shared), contents_of(s, s.shared, size));
  s.pages.push_back(page);
  ++s.shared;
  s.posted += size;
}

void take_prefix(SchedulerState& state, Sequence& s) {
  if (!state.options.prefix_cache) return;
  const int32_t size = state.limits.page_size;
  const int32_t most = wanted_pages(s, size);
  while (s.shared < most && s.posted == s.shared * size && s.shared == static_cast<int32_t>(s.pages.size())) {
    const int32_t page = state.pages.find(parent_of(s, s.shared), contents_of(s, s.shared, size));
    if (page == PageAllocator::kNoPage) return;
    state.pages.hold(page);
    s.pages.push_back(page);
    ++s.shared;
    s.posted += size;
  }
}

void look_ahead(SchedulerState& state) {
  if (!state.options.prefix_cache) return;
  int32_t budget = kLooks;
  const auto look = [&](Sequence& s) {
    const int32_t pages = pages_there(state, s);
    s.found = pages * state.limits.page_size;
    s.looked = state.counts.steps;
    budget -= 1 + pages;
  };
  // Who is new is at the end.
  for (auto it = state.waiting.rbegin(); it != state.waiting.rend() && (*it)->looked < 0; ++it) look(**it);
  if (state.free_slots.empty()) return;
  // The others in turn, as far as the budget goes.
  const auto next =
      std::ranges::find_if(state.waiting, [&](const auto& s) { return s->arrival > state.last_look; });
  const auto look_again = [&](auto begin, auto end) {
    for (auto it = begin; it != end && budget > 0; ++it) {
      state.last_look = (*it)->arrival;
      if (state.counts.steps - (*it)->looked >= kLookEvery) look(**it);
    }
  };
  look_again(next, state.waiting.end());
  look_again(state.waiting.begin(), next);
}

void share_pages(SchedulerState& state, Sequence& s, bool building) {
  if (!state.options.prefix_cache) return;
  const int32_t size = state.limits.page_size;
  const int32_t complete = std::min(s.posted, static_cast<int32_t>(s.tokens.size())) / size;
  for (; s.shared < complete; ++s.shared) {
    const int32_t own = s.pages[s.shared], parent = parent_of(s, s.shared);
    const std::vector<int32_t> contents = contents_of(s, s.shared, size);
    const int32_t other = state.pages.find(parent, contents);
    if (other == PageAllocator::kNoPage) {
      state.pages.publish(own, parent, contents,
                          building      ? PageAllocator::kNextStep
                          : s.in_flight ? s.last_step
                                        : 0);
      continue;
    }
    if (building) return;
    state.pages.hold(other);
    s.pages[s.shared] = other;
    state.pages.give_back(own, s.in_flight ? s.last_step : 0);
    s.pages_known = std::min(s.pages_known, s.shared);  // the device's table follows with the next step
  }
}

}  // namespace ark::schedule
