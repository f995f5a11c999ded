#include "server/schedule/blame.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace ark::schedule {
namespace {

constexpr int64_t kTellingParts = 10;  // a cause is named from one of so many parts on

constexpr CauseText kTexts[kCauses] = {
    {"prompt", "its own prompt was read"},
    {"tokens", "its own tokens were computed"},
    {"queue", "it waited while others' prompts and streams were computed"},
    {"others_prompts", "its steps were longer by prompts of others"},
    {"others_streams", "its prompt shared steps with streams of others"},
    {"pages", "no pages were left: it waited for some, or lost its own and was computed again"},
    {"lost_core", "another thread or program had a core that its steps needed"},
    {"late_rank", "the other ranks waited for one that was late"},
    {"wire", "all ranks waited for messages"},
    {"page_faults", "memory came from a disk"},
    {"restart", "the model's process was lost and began anew"},
    {"peers", "it waited for pages of its prompt that other servers had"},
    {"slow_reader", "the client did not take what was ready"},
    {"server", "the server itself, between steps and after the last"},
};

bool is_own(std::size_t cause) {
  return cause == static_cast<std::size_t>(Cause::kPrompt) ||
         cause == static_cast<std::size_t>(Cause::kTokens);
}

int64_t part_of(int64_t ns, int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<int64_t>(static_cast<double>(ns) * static_cast<double>(part) /
                                          static_cast<double>(whole))
                   : 0;
}

// Takes what hindered the step; returns what is left, in which it computed.
int64_t take_hindrances(const StepFacts& step, Shares& shares) {
  int64_t left = std::max<int64_t>(0, step.ns());
  for (const auto& [cause, ns] :
       {std::pair(Cause::kLostCore, step.cost.lost_ns), std::pair(Cause::kPageFaults, step.cost.faulted_ns),
        std::pair(Cause::kLateRank, step.cost.late_ns), std::pair(Cause::kWire, step.cost.wire_ns)}) {
    shares[cause] = std::clamp<int64_t>(ns, 0, left);
    left -= shares[cause];
  }
  return left;
}

// Of `ns` in which the step computed, what its tokens of prompts took.
int64_t time_of_prompts(const StepFacts& step, int64_t ns) {
  if (step.prompts == 0) return 0;
  if (step.decodes == 0) return ns;
  if (step.alone > 0) return std::clamp<int64_t>(ns - std::llround(step.alone * 1e9), 0, ns);
  return part_of(ns, step.prompts, step.prompts + step.decodes);
}

}  // namespace

const CauseText& text_of(Cause cause) { return kTexts[static_cast<std::size_t>(cause)]; }

int64_t Shares::sum() const { return std::accumulate(ns.begin(), ns.end(), int64_t{0}); }

void Shares::add(const Shares& other) {
  for (std::size_t i = 0; i < kCauses; ++i) ns[i] += other.ns[i];
}

Shares difference(const Shares& after, const Shares& before) {
  Shares out;
  for (std::size_t i = 0; i < kCauses; ++i) out.ns[i] = after.ns[i] - before.ns[i];
  return out;
}

Cause named(const Shares& shares) {
  std::size_t own = 0, other = static_cast<std::size_t>(Cause::kQueue);
  for (std::size_t i = 0; i < kCauses; ++i) {
    std::size_t& most = is_own(i) ? own : other;
    if (shares.ns[i] > shares.ns[most]) most = i;
  }
  const bool is_telling = shares.ns[other] > 0 && shares.ns[other] * kTellingParts >= shares.sum();
  return static_cast<Cause>(is_telling ? other : own);
}

Shares shares_of(const StepFacts& step, const StepPart& part) {
  Shares shares;
  const int64_t ns = take_hindrances(step, shares);
  const int64_t prompts = time_of_prompts(step, ns), own = part_of(prompts, part.prompt, step.prompts);
  shares[Cause::kOthersPrompts] += prompts - own;
  if (part.prompt == 0) {
    shares[Cause::kTokens] += ns - prompts;
    return shares;
  }
  const int64_t again = part_of(own, part.again, part.prompt);
  shares[part.redo] += again;
  shares[Cause::kPrompt] += own - again;
  shares[Cause::kOthersStreams] += ns - prompts;
  return shares;
}

Shares shares_of_waiting(const StepFacts& step) {
  Shares shares;
  shares[Cause::kQueue] = take_hindrances(step, shares);
  return shares;
}

Shares shares_of_wait(int64_t ns, Shares steps, bool for_pages, int64_t peers_ns) {
  ns = std::max<int64_t>(0, ns);
  peers_ns = std::clamp<int64_t>(peers_ns, 0, ns);
  ns -= peers_ns;
  if (const int64_t sum = steps.sum(); sum > ns) {
    for (int64_t& share : steps.ns) share = part_of(ns, share, sum);
  }
  if (for_pages) steps[Cause::kPages] += std::exchange(steps[Cause::kQueue], 0);
  steps[Cause::kServer] += ns - steps.sum();
  steps[Cause::kPeers] += peers_ns;
  return steps;
}

}  // namespace ark::schedule
