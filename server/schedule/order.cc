#include "server/schedule/order.h"

#include <algorithm>
#include <tuple>

namespace ark::schedule {
namespace {

constexpr int64_t kPatience = 4;
constexpr int64_t kGenerated = 2;  // a token that is generated counts as so many that are read

}  // namespace

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
    const auto left = static_cast<int64_t>(s.asked) - s.posted;
    return std::tuple(state.work.at(s.request.client).served, s.request.client,
                      state.options.shortest_first ? kPatience * left + s.born : 0, s.arrival);
  };
  return key(a) < key(b);
}

}  // namespace ark::schedule
