#include "server/schedule/order.h"

#include <algorithm>
#include <tuple>

namespace ark::schedule {
namespace {

constexpr int64_t kPatience = 16;
constexpr int64_t kTurn = 16;
constexpr int64_t kGenerated = 2;  // a token that is generated counts as so many that are read

// Tokens; of one without a slot, as far as is known which of them need not be computed.
int64_t left(const Sequence& s) { return s.asked - std::max(s.posted, s.slot < 0 ? s.found : 0); }

}  // namespace

bool is_late(const SchedulerState& state, const Sequence& s) {
  if (state.options.slo_ttft <= 0 || s.generated() > 0) return false;
  const double waited = std::chrono::duration<double>(state.now - s.ticket->record().queued).count();
  return waited + state.pace.each() * static_cast<double>(left(s)) > state.options.slo_ttft;
}

void arrive(SchedulerState& state, Sequence& s) {
  // Who was away, or had streams alone, which nobody holds back, has no claim for that time.
  const auto is_there = [&](uint32_t client) {
    const auto is_its = [&](const auto& other) {
      return !other->done && other->generated() == 0 && other->request.client == client;
    };
    return std::ranges::any_of(state.running, is_its) || std::ranges::any_of(state.waiting, is_its);
  };
  ClientWork& own = state.work[s.request.client];
  if (!is_there(s.request.client)) {
    int64_t least = INT64_MAX, most = 0;
    for (const auto& [client, work] : state.work) {
      if (is_there(client)) least = std::min(least, work.served);
      most = std::max(most, work.served);
    }
    if (least == INT64_MAX) least = most;  // where nobody waits, nobody has one
    own.served = std::max(own.served, least);
  }
  s.born = own.served;
}

void count_tokens(SchedulerState& state, const Sequence& s, int32_t prompts, int32_t generated) {
  ClientWork& work = state.work[s.request.client];
  const int64_t served = prompts + kGenerated * generated;
  work.served += served;
  if (s.has_turn) work.next_turn += kTurn * served;
}

void give_turns(SchedulerState& state) {
  if (state.options.slo_ttft <= 0) return;
  // By client: who has it, or else the oldest that is late.
  std::map<uint32_t, std::shared_ptr<Sequence>> turns;
  const auto look = [&](const std::shared_ptr<Sequence>& s) {
    if (s->done || s->generated() > 0 || !(s->has_turn || is_late(state, *s))) return;
    std::shared_ptr<Sequence>& turn = turns[s->request.client];
    const auto rank = [](const Sequence& one) { return std::tuple(!one.has_turn, one.arrival); };
    if (!turn || rank(*s) < rank(*turn)) turn = s;
  };
  std::ranges::for_each(state.running, look);
  std::ranges::for_each(state.waiting, look);
  for (auto& [client, work] : state.work)
    if (const auto turn = turns.find(client); turn != turns.end())
      turn->second->has_turn = true;
    else
      work.next_turn = work.served;
}

bool goes_before(const SchedulerState& state, const Sequence& a, const Sequence& b) {
  const auto key = [&](const Sequence& s) {
    const ClientWork& work = state.work.at(s.request.client);
    const int64_t rest = left(s);
    const bool is_due = s.has_turn && s.generated() == 0 && work.served >= work.next_turn;
    const bool late = is_late(state, s);
    const bool is_by_arrival =
        !state.options.shortest_first || (work.served - s.born >= kPatience * rest && !late);
    return std::tuple(work.served, s.request.client, !is_due, late, !is_by_arrival, is_by_arrival ? 0 : rest,
                      s.arrival);
  };
  return key(a) < key(b);
}

}  // namespace ark::schedule
