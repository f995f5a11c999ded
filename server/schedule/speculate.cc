#include "server/schedule/speculate.h"

#include <algorithm>
#include <functional>

namespace ark::schedule {
namespace {

// Of tokens a second, that drafts must promise: less is within what estimates are wrong by.
constexpr double kGain = 1.05;

// A token that would be drafted, behind all before it of its sequence.
struct Candidate {
  Sequence* sequence;
  int32_t token;
  double chance;  // that it comes, and all before it
};

void add_candidates(const SchedulerState& state, Sequence& s, std::vector<Candidate>& into) {
  if (s.request.max_drafts == 0) return;
  if (!s.lookup) s.lookup = std::make_unique<Lookup>(s.request.expected);
  s.lookup->follow(s.tokens, s.prompt_size());
  const int32_t unknown = s.asked - static_cast<int32_t>(s.tokens.size());
  const int32_t most = std::min({state.options.max_drafts, s.request.max_drafts, s.target() - s.asked - 1});
  double chance = 1;
  for (int32_t i = 0; i < unknown + most; ++i) {
    const int32_t token = s.lookup->token(i);
    if (!state.limits.is_embedded(token)) return;
    chance *= s.lookup->chance(i);
    if (i >= unknown) into.push_back({&s, token, chance});
  }
}

// How many of them, which are sorted by chance: as long as each is worth more than its time is otherwise.
std::size_t worth_drafting(const std::vector<Candidate>& candidates, double sequences,
                           const Pace::Prices& prices) {
  double tokens = sequences, seconds = prices.alone;
  std::size_t count = 0;
  for (; count < candidates.size() && candidates[count].chance * seconds > prices.each * tokens; ++count) {
    tokens += candidates[count].chance;
    seconds += prices.each;
  }
  return tokens * prices.alone < kGain * sequences * seconds ? 0 : count;
}

// Nobody yields pages for drafts.
bool have_pages(const SchedulerState& state, const std::vector<std::shared_ptr<Sequence>>& decoding) {
  const int32_t size = state.limits.page_size;
  int32_t missing = 0;
  for (const auto& s : decoding) {
    const int32_t needed = (s->posted + 1 + static_cast<int32_t>(s->drafts.size()) + size - 1) / size;
    // It may have more from drafts before, which are no other's.
    missing += std::max(0, needed - static_cast<int32_t>(s->pages.size()));
  }
  return missing <= state.pages.obtainable();
}

}  // namespace

bool draft(SchedulerState& state, const std::vector<std::shared_ptr<Sequence>>& decoding) {
  const Pace::Prices prices = state.pace.draft_prices();
  if (state.options.max_drafts == 0 || prices.each <= 0) return false;
  std::vector<Candidate> candidates;
  for (const auto& s : decoding) add_candidates(state, *s, candidates);
  std::ranges::stable_sort(candidates, std::greater(), &Candidate::chance);
  const std::size_t room = std::min(state.limits.max_rows, state.options.max_batched_tokens);
  candidates.resize(std::min(candidates.size(), room - std::min(room, decoding.size())));
  candidates.resize(worth_drafting(candidates, static_cast<double>(decoding.size()), prices));
  if (candidates.empty() || !state.flights.empty()) return !candidates.empty();
  for (const Candidate& c : candidates) {
    c.sequence->drafts.push_back(c.token);
    c.sequence->drafts_expected = c.sequence->lookup->is_expected();
  }
  if (have_pages(state, decoding)) return true;
  for (const auto& s : decoding) s->drafts.clear();
  return false;
}

bool follows(Sequence& s, int32_t index) {
  if (s.drafts.empty()) return true;
  if (index != static_cast<int32_t>(s.tokens.size())) return false;  // behind one that was wrong
  const int32_t drafted = index - s.drafted_at;
  if (drafted > 0 && s.tokens.back() != s.drafts[drafted - 1]) return false;
  s.drafts_right = drafted;
  s.posted = index;
  return true;
}

void count_drafts(SchedulerState& state, Sequence& s) {
  if (s.drafts.empty()) return;
  const auto drafted = static_cast<int32_t>(s.drafts.size());
  ++state.counts.drafts;
  state.counts.draft_tokens += drafted;
  state.counts.accepted_tokens += s.drafts_right;
  if (s.drafts_expected) s.ticket->mark_drafts(s.drafts_right, drafted - s.drafts_right);
  s.asked = static_cast<int32_t>(s.tokens.size());
  s.drafts.clear();
}

}  // namespace ark::schedule
