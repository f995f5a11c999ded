#include "engine/run/step_cost.h"

#include <algorithm>

namespace ark {
namespace {

// Somebody else's turn on a core, or a page from a disk, takes no longer than this; what a stopped thread lost beyond
// that was by its stop.
constexpr int64_t kLongestTurn = 20'000'000;  // ns

struct Losses {
  int64_t lost = 0, faulted = 0, stopped = 0;
};

Losses losses_of(const ProcessorCost& p) {
  const int64_t turns = int64_t{p.faults} + p.switches;
  const int64_t explained = p.stops > 0 ? std::min(p.off_ns, turns * kLongestTurn) : p.off_ns;
  // Off its core for no reason that the system knows: the core itself was away.
  const int64_t faulted = turns > 0 ? explained / turns * p.faults : 0;
  return {explained - faulted, faulted, p.off_ns - explained};
}

// The most that any of its processors lost: the others waited meanwhile.
Losses losses_of(const RankCost& rank) {
  Losses most;
  for (const ProcessorCost& p : rank.processors) {
    const Losses own = losses_of(p);
    most.lost = std::max(most.lost, lost_of(p));
    most.faulted = std::max(most.faulted, own.faulted);
    most.stopped = std::max(most.stopped, own.stopped);
  }
  return most;
}

void tell_late(StepCost& cost, int64_t ns, int32_t rank) {
  if (ns <= cost.late_ns) return;
  cost.late_ns = ns;
  cost.late_rank = rank;
}

}  // namespace

int64_t lost_of(const ProcessorCost& p) { return std::max(losses_of(p).lost, p.delayed_ns); }

StepCost cost_of(std::span<const RankCost> ranks, int32_t all_ranks) {
  StepCost cost;
  const RankCost *first = nullptr, *last = nullptr;  // to be through: the one that waited most, and least
  for (const RankCost& rank : ranks) {
    const Losses losses = losses_of(rank);
    if (losses.lost > cost.lost_ns) {
      cost.lost_ns = losses.lost;
      cost.lost_rank = rank.rank;
    }
    cost.faulted_ns = std::max(cost.faulted_ns, losses.faulted);
    tell_late(cost, losses.stopped, rank.rank);
    for (const ProcessorCost& processor : rank.processors) cost.sent += processor.sent;
    const int64_t waited = rank.processors[0].waited_ns;
    if (!first || waited > first->processors[0].waited_ns) first = &rank;
    if (!last || waited < last->processors[0].waited_ns) last = &rank;
  }
  if (ranks.empty() || all_ranks < 2) return cost;
  if (static_cast<int32_t>(ranks.size()) < all_ranks) {
    tell_late(cost, first->processors[0].waited_ns, first->processors[0].longest_peer);
    return cost;
  }
  cost.wire_ns = last->processors[0].waited_ns;
  const Losses losses = losses_of(*last);
  tell_late(cost, first->processors[0].waited_ns - cost.wire_ns - losses.lost - losses.faulted, last->rank);
  return cost;
}

}  // namespace ark
