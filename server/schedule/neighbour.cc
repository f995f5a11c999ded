#include "server/schedule/neighbour.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "server/schedule/prefix.h"

namespace ark::schedule {
namespace {

using namespace std::chrono_literals;
using Time = std::chrono::steady_clock::time_point;

// Short prompts are computed sooner; a neighbour on a busy machine has its time all the same.
constexpr auto kLeastPatience = 250ms;
constexpr auto kUnknownPatience = 1s;        // where it is not known what computing takes
constexpr auto kComputingPatience = 60s;     // they say that they live meanwhile
constexpr int32_t kLookAgain = 32;           // high prices, too, are looked at again
constexpr std::size_t kMostBytes = 8 << 20;  // that are taken in between two steps, where somebody else runs

// The first page of `s` that is not there is on its way to another sequence.
bool comes_for_another(const SchedulerState& state, const Sequence& s) {
  const auto end = std::ptrdiff_t{s.shared + 1} * state.limits.page_size;
  return std::ranges::any_of(state.running, [&](const auto& other) {
    return other->fetch && other.get() != &s && other->fetched <= s.shared && s.shared < other->fetch_end &&
           other->scope == s.scope &&
           std::equal(s.tokens.begin(), s.tokens.begin() + end, other->tokens.begin());
  });
}

bool is_worth_while(SchedulerState& state, int32_t pages) {
  const PageSource& source = *state.neighbours;
  const double fetching = source.seconds(pages),
               computing = pages * state.limits.page_size * state.pace.each();
  if (source.computes() || fetching <= 0 || computing <= 0 || fetching <= computing) return true;
  if (++state.passed_over < kLookAgain) return false;
  state.passed_over = 0;
  return true;
}

std::chrono::nanoseconds patience_for(const SchedulerState& state, int32_t pages) {
  if (state.neighbours->computes()) return kComputingPatience;
  const double computing = pages * state.limits.page_size * state.pace.each();
  if (computing <= 0) return kUnknownPatience;
  return std::max<std::chrono::nanoseconds>(kLeastPatience,
                                            std::chrono::nanoseconds(std::llround(computing * 1e9)));
}

void ask(SchedulerState& state, Sequence& s) {
  const int32_t size = state.limits.page_size;
  if (s.was_asked || s.in_flight > 0 || s.posted != s.shared * size) return;
  s.follows = false;
  take_prefix(state, s);
  const int32_t end = wanted_pages(s, size);
  if (s.shared >= end) {
    s.was_asked = true;
    return;
  }
  if (comes_for_another(state, s)) {
    s.follows = true;
    return;
  }
  s.was_asked = true;
  if (!state.neighbours->is_there() || !is_worth_while(state, end - s.shared)) return;
  s.fetched = s.shared;
  s.fetch_end = end;
  s.fetch_began = state.now;
  s.fetch = state.neighbours->ask({s.scope,
                                   {s.tokens.begin(), s.tokens.begin() + std::ptrdiff_t{end} * size},
                                   s.shared,
                                   patience_for(state, end - s.shared)});
}

void end_fetch(Sequence& s, Time now) {
  s.fetch.reset();
  s.fetch_ns += (now - s.fetch_began).count();
}

// Takes at most `most` bytes; returns how many.
std::size_t take(SchedulerState& state, StepRunner& runner, Sequence& s, std::size_t most) {
  const int32_t size = state.limits.page_size;
  std::size_t taken = 0;
  while (taken < most) {
    const bool was_over = s.fetch->is_over();  // first: what came before that is still there
    const std::optional<std::string> bytes = s.fetch->next();
    if (!bytes) {
      if (was_over) end_fetch(s, state.now);
      return taken;
    }
    take_prefix(state, s);
    if (s.fetched++ < s.shared) continue;  // here by now
    const int32_t page = state.pages.take();
    if (page == PageAllocator::kNoPage) {  // nobody gives any away for it: it waits as others do
      end_fetch(s, state.now);
      return taken;
    }
    runner.write_page(page, std::span(s.tokens).subspan(std::size_t(s.shared * size), std::size_t(size)),
                      std::as_bytes(std::span(*bytes)));
    append_page(state, s, page);
    taken += bytes->size();
  }
  return taken;
}

}  // namespace

void ask_neighbours(SchedulerState& state, StepRunner& runner) {
  if (!state.neighbours || !state.options.prefix_cache) return;
  const bool is_alone = state.flights.empty() &&
                        std::ranges::none_of(state.running, [](const auto& s) { return s->can_run(); });
  std::size_t left = is_alone ? SIZE_MAX : kMostBytes;
  for (const auto& s : state.running) {
    if (s->done) continue;
    if (!s->fetch) ask(state, *s);
    if (s->fetch) left -= std::min(left, take(state, runner, *s, left));
  }
}

}  // namespace ark::schedule
