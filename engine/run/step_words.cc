#include "engine/run/step_words.h"

#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>

#include "engine/run/mailbox.h"

namespace ark {
namespace {

// Steps that have waited less for others than this do not wait for their words; others for so many parts of that time.
constexpr std::chrono::milliseconds kTelling{1};
constexpr int kParts = 20;

struct Word {
  uint64_t step = 0;
  RankCost cost;
};
static_assert(std::is_trivially_copyable_v<Word> && sizeof(Word) <= 64 && sizeof(Word) % 4 == 0);
constexpr uint64_t kSlots = 2 * Mailbox::kDepth;

}  // namespace

dma::ChannelSpec StepWords::channel(dma::Priority priority) {
  return {.name = "costs of steps", .priority = priority, .slots = kSlots, .slot_bytes = sizeof(Word)};
}

StepWords::StepWords(const dma::Group& group, uint32_t channel) {
  if (group.rank() != 0) {
    to_first_ = group.sender(0, channel);
    return;
  }
  for (int peer = 1; peer < group.size(); ++peer) from_others_.push_back(group.receiver(peer, channel));
}

dma::Fault StepWords::tell(uint64_t step, const RankCost& cost, const dma::WaitContext& context) {
  // The slot's last word has gone out, long since: what rank 0 has sent meanwhile waited for what was behind it.
  if (step > kSlots)
    if (dma::Fault fault = to_first_.wait_completed(step - kSlots, context)) return fault;
  const Word word{step, cost};
  std::memcpy(to_first_.slot(step), &word, sizeof word);
  return to_first_.commit(step, 0, sizeof word, context);
}

StepCost StepWords::cost_of_step(uint64_t step, const RankCost& own) {
  const auto ranks = static_cast<int32_t>(from_others_.size()) + 1;
  if (const auto before = std::exchange(without_words_, {}))
    if (const auto costs = collect(step - 1, *before, {}); !costs.empty()) learn(ark::cost_of(costs, ranks));
  const std::chrono::nanoseconds waited(own.waited_ns);
  const auto costs = collect(step, own, waited < kTelling ? waited * 0 : waited / kParts);
  StepCost cost = ark::cost_of(costs.empty() ? std::span(&own, 1) : costs, ranks);
  if (!costs.empty()) {
    learn(cost);
    return cost;
  }
  without_words_ = own;
  if (cost.late_ns <= own.stopped_ns) return cost;
  cost.wire_ns = static_cast<int64_t>(wire_part_ * static_cast<double>(cost.late_ns));
  cost.late_ns -= cost.wire_ns;
  return cost;
}

std::vector<RankCost> StepWords::collect(uint64_t step, const RankCost& own,
                                         std::chrono::nanoseconds patience) const {
  std::vector<RankCost> costs = {own};
  const dma::WaitContext context{.deadline = dma::Deadline::after(patience)};
  for (const dma::Receiver& peer : from_others_) {
    Word word;
    if (!peer.wait(step, context)) std::memcpy(&word, peer.slot(step), sizeof word);
    // A number: a peer's word is never trusted to be the one that is due.
    if (word.step != step || word.cost.rank != peer.peer) return {};
    costs.push_back(word.cost);
  }
  return costs;
}

void StepWords::learn(const StepCost& cost) {
  const int64_t waited = cost.wire_ns + cost.late_ns;
  if (waited > 0) wire_part_ = static_cast<double>(cost.wire_ns) / static_cast<double>(waited);
}

}  // namespace ark
