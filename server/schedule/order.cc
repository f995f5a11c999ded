#include "server/schedule/order.h"

#include <algorithm>
#include <tuple>

namespace ark::schedule {
namespace {

constexpr int64_t kPatience = 8;
constexpr int64_t kGenerated = 2;  // a token that is generated counts as so many that are read

}  // namespace

bool is_late(const SchedulerState& state, const Sequence& s) {
  if (state.options.slo_ttft <= 0 || s.generated() > 0 || s.has_turn) return false;
  const double waited = std::chrono::duration<double>(state.now - s.ticket->record().queued).count();
  return waited + state.pace.each() * static_cast<double>(s.asked - s.posted) > state.options.slo_ttft;
}

void arrive(SchedulerState& state, Sequence& s) {
  // Who was away has no claim for that time.
  const auto is_there = [&](uint32_t client) {
    const auto is_its = [&](const auto& other) { return !other->done && other->request.client == client; };
    return std::ranges::any_of(state.running, is_its) || std::ranges::any_of(state.waiting, is_its);
  };
  ClientWork& own = state.work[s.request.client];
  if (!is_there(s.request.client)) {
    int64_t least = INT64_MAX;
    for (const auto& [client, work] : state.work)
      if (is_there(client)) least = std::min(least, work.served);
    if (least != INT64_MAX) own.served = std::max(own.served, least);
  }
  s.born = own.read;
}

void count_tokens(SchedulerState& state, const Sequence& s, int32_t prompts, int32_t generated) {
  ClientWork& work = state.work[s.request.client];
  work.read += prompts;
  work.served += prompts + kGenerated * generated;
}

bool goes_before(const SchedulerState& state, const Sequence& a, const Sequence& b) {
  const auto key = [&](const Sequence& s) {
    const ClientWork& work = state.work.at(s.request.client);
    const auto left = static_cast<int64_t>(s.asked) - s.posted;
    const bool late = is_late(state, s);
    const bool is_by_arrival =
        !state.options.shortest_first || (work.read - s.born >= kPatience * left && !late);
    return std::tuple(work.served, s.request.client, late, !is_by_arrival, is_by_arrival ? 0 : left,
                      s.arrival);
  };
  return key(a) < key(b);
}

}  // namespace ark::schedule
