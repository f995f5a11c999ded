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

void tell_late(StepCost& cost, int64_t ns, int32_t rank) {
  if (ns <= cost.late_ns) return;
  cost.late_ns = ns;
  cost.late_rank = rank;
}

}  // namespace

int64_t lost_of(const ProcessorCost& p) { return std::max(losses_of(p).lost, p.delayed_ns); }

RankCost cost_of_rank(int32_t rank, std::span<const ProcessorCost> processors) {
  const ProcessorCost& leader = processors[0];
  RankCost cost{leader.waited_ns, leader.longest_ns, leader.longest_peer, rank};
  for (const ProcessorCost& p : processors) {
    const Losses own = losses_of(p);
    cost.lost_ns = std::max(cost.lost_ns, lost_of(p));
    cost.faulted_ns = std::max(cost.faulted_ns, own.faulted);
    cost.stopped_ns = std::max(cost.stopped_ns, own.stopped);
  }
  return cost;
}

StepCost cost_of(std::span<const RankCost> ranks, int32_t all_ranks) {
  StepCost cost;
  if (ranks.empty()) return cost;
  for (const RankCost& rank : ranks) {
    if (rank.lost_ns > cost.lost_ns) {
      cost.lost_ns = rank.lost_ns;
      cost.lost_rank = rank.rank;
    }
    cost.faulted_ns = std::max(cost.faulted_ns, rank.faulted_ns);
    tell_late(cost, rank.stopped_ns, rank.rank);
  }
  if (all_ranks < 2) return cost;
  const auto [last, first] = std::ranges::minmax(ranks, {}, &RankCost::waited_ns);  // to be through
  if (std::ssize(ranks) < all_ranks) {
    tell_late(cost, first.waited_ns, first.longest_peer);
    return cost;
  }
  cost.wire_ns = last.waited_ns;
  tell_late(cost, first.waited_ns - cost.wire_ns - last.lost_ns - last.faulted_ns, last.rank);
  return cost;
}

}  // namespace ark
