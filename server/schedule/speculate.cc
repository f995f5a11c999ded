#include "server/schedule/speculate.h"

#include <algorithm>
#include <functional>

#include "server/schedule/constrain.h"

namespace ark::schedule {
namespace {

// Of tokens a second, that drafts must promise: less is within what estimates are wrong by.
constexpr double kGain = 1.05;
constexpr double kLikely = 0.25;  // of a step, what one of a draft model takes, before it is known
// Weight of a guess in what is known of a sequence's.
constexpr double kLearn = 0.1;

// A token that would be drafted, behind all before it of its sequence.
struct Candidate {
  Sequence* sequence;
  int32_t token;
  double chance;  // that it comes, and all before it
};

int32_t most_drafts(const SchedulerState& state, const Sequence& s) {
  if (is_constrained(s)) return 0;
  return std::min({state.options.max_drafts, s.request.max_drafts, s.target() - s.asked - 1});
}

void add_candidates(const SchedulerState& state, Sequence& s, std::vector<Candidate>& into) {
  if (s.request.max_drafts == 0 || is_constrained(s)) return;
  if (!s.lookup) s.lookup = std::make_unique<Lookup>(s.request.expected);
  s.lookup->follow(s.tokens, s.prompt_size());
  const int32_t unknown = s.asked - static_cast<int32_t>(s.tokens.size());
  const int32_t most = most_drafts(state, s);
  double chance = 1;
  for (int32_t i = 0; i < unknown + most; ++i) {
    const int32_t token = s.lookup->token(i);
    if (!state.limits.is_embedded(token)) return;
    chance *= s.lookup->chance(i);
    if (i >= unknown) into.push_back({&s, token, chance});
  }
}

// Drafts that are worth their time, and the tokens a second that they promise.
struct Worth {
  std::size_t count = 0;
  double rate = 0;
};

// Of candidates, which are sorted by chance: as long as each is worth more than its time is otherwise.
Worth worth_drafting(const std::vector<Candidate>& candidates, double sequences, const Pace::Prices& prices) {
  double tokens = sequences, seconds = prices.alone;
  Worth worth;
  for (; worth.count < candidates.size() && candidates[worth.count].chance * seconds > prices.each * tokens;
       ++worth.count) {
    tokens += candidates[worth.count].chance;
    seconds += prices.each;
  }
  worth.rate = tokens / seconds;
  return worth.rate * prices.alone < kGain * sequences ? Worth{} : worth;
}

// -- by a draft model

// Whom it may help: what it must read first takes less than it may save.
bool is_worth_reading(const SchedulerState& state, const Sequence& s, const Pace::Prices& prices) {
  constexpr double kSaved = 0.25;  // of what the rest of an answer takes, about
  const Drafter::Prices own = state.drafter->prices();
  const double read = own.read > 0 ? own.read : prices.each;
  return state.drafter->unread(s.slot, s.tokens) * read < kSaved * prices.alone * (s.target() - s.asked);
}

// How many each of `helped` should get. A guess of all takes a step of the draft model, and a row of the step each.
Worth worth_asking(const SchedulerState& state, const std::vector<Sequence*>& helped, double sequences,
                   const Pace::Prices& prices) {
  const double known = state.drafter->prices().guess, guess = known > 0 ? known : kLikely * prices.alone;
  const double room = std::min(state.limits.max_rows, state.options.max_batched_tokens) - sequences;
  std::vector<double> chances(helped.size(), 1);
  double tokens = sequences, seconds = prices.alone, drafts = 0;
  Worth best;
  for (int32_t depth = 1; depth <= state.options.max_drafts; ++depth) {
    double rows = 0;
    for (std::size_t i = 0; i < helped.size(); ++i) {
      if (most_drafts(state, *helped[i]) < depth) continue;
      tokens += chances[i] *= helped[i]->agreement;
      ++rows;
    }
    seconds += guess + rows * prices.each;
    drafts += rows;  // also of those that take fewer
    if (rows == 0 || drafts > room) break;
    if (tokens / seconds > best.rate) best = {static_cast<std::size_t>(depth), tokens / seconds};
  }
  return best.rate * prices.alone < kGain * sequences ? Worth{} : best;
}

// Those of `decoding` that a draft model may help. What it has been wrong about is not held against it for ever.
std::vector<Sequence*> whom_to_help(const SchedulerState& state,
                                    const std::vector<std::shared_ptr<Sequence>>& decoding,
                                    const Pace::Prices& prices) {
  constexpr double kForgive = 0.001, kHope = 0.7;  // each step; about 60 make good for a wrong guess
  std::vector<Sequence*> helped;
  if (!state.drafter || state.drafter->has_failed()) return helped;
  for (const auto& s : decoding) {
    if (most_drafts(state, *s) < 1 || !is_worth_reading(state, *s, prices)) continue;
    if (s->agreement < 0) s->agreement = state.drafter->agreement();
    s->agreement += kForgive * (kHope - s->agreement);
    helped.push_back(s.get());
  }
  return helped;
}

void ask(SchedulerState& state, const std::vector<Sequence*>& helped, std::size_t depth) {
  std::vector<Drafter::Question> questions;
  for (const Sequence* s : helped) {
    Drafter::Question question{.slot = s->slot, .text = s->tokens, .sampling = s->request.sampling};
    // It has no history of the slot that penalties could be of.
    question.sampling.presence_penalty = question.sampling.frequency_penalty = 0;
    question.sampling.repetition_penalty = 1;
    question.most = std::min(most_drafts(state, *s), static_cast<int32_t>(depth));
    questions.push_back(std::move(question));
  }
  const auto start = Pace::Clock::now();
  state.drafter->answer(questions);
  state.pace.spent_drafting(Pace::Clock::now() - start);
  for (std::size_t i = 0; i < helped.size(); ++i) {
    for (const int32_t token : questions[i].guesses) {
      if (!state.limits.is_embedded(token)) break;
      helped[i]->drafts.push_back(token);
    }
    helped[i]->drafts_expected = false;
    helped[i]->drafts_asked = true;
  }
}

bool has_drafts(const std::shared_ptr<Sequence>& s) { return !s->drafts.empty(); }

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
  const auto sequences = static_cast<double>(decoding.size());
  const std::size_t room = std::min(state.limits.max_rows, state.options.max_batched_tokens);
  candidates.resize(std::min(candidates.size(), room - std::min(room, decoding.size())));
  const Worth found = worth_drafting(candidates, sequences, prices);
  const std::vector<Sequence*> helped = whom_to_help(state, decoding, prices);
  const Worth asked = helped.empty() ? Worth{} : worth_asking(state, helped, sequences, prices);
  if (!helped.empty() && asked.count == 0) state.drafter->passed_over(kLikely * prices.alone);
  if (found.count + asked.count == 0 || !state.flights.empty()) return found.count + asked.count > 0;
  if (asked.rate > found.rate) {
    ask(state, helped, asked.count);
    if (std::ranges::none_of(decoding, has_drafts)) return false;  // it reads as yet
  } else {
    candidates.resize(found.count);
    for (const Candidate& c : candidates) {
      c.sequence->drafts.push_back(c.token);
      c.sequence->drafts_expected = c.sequence->lookup->is_expected();
      c.sequence->drafts_asked = false;
    }
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
  if (s.drafts_asked) {
    const int32_t wrong = s.drafts_right < drafted ? 1 : 0;  // those behind it tell nothing
    for (int32_t i = 0; i < s.drafts_right; ++i) s.agreement += kLearn * (1 - s.agreement);
    s.agreement -= wrong * kLearn * s.agreement;
    state.drafter->learn(s.drafts_right, wrong);
  }
  s.asked = static_cast<int32_t>(s.tokens.size());
  s.drafts.clear();
}

}  // namespace ark::schedule
