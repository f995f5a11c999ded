#include "dma/reduce_on_arrival.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace ark::dma {
namespace {

// Above so many bytes of parts processors add: they may be several, and what comes in waits for the pump. It adds as
// many in about the time that a thread takes to wake.
constexpr uint64_t kWorth = 512 << 10;

// Any bits of a number, for kMixed (splitmix64).
uint64_t scattered(uint64_t x) {
  x = (x + 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

SumsBy sums_wish() {
  const char* wish = std::getenv("ARK_SUMS");
  const std::string_view name = wish ? wish : "";
  if (name.empty() || name == "depth") return SumsBy::kDepth;
  if (name == "processors") return SumsBy::kProcessors;
  if (name == "pump") return SumsBy::kPump;
  if (name == "mixed") return SumsBy::kMixed;
  throw Error(Code::kUsage, "ARK_SUMS=" + escaped(name) + " is none of depth, processors, pump, mixed");
}

ArrivalSums::Part ArrivalSums::Part::of(const Receiver& from, uint64_t message, uint64_t per_round,
                                        uint64_t commits) {
  return {from.arrived, from.first_count, commits, const_cast<std::byte*>(from.slot_base),
          from.slots,   from.slot_bytes,  message, per_round,
          from.peer};
}

ArrivalSums::Part ArrivalSums::Part::of(const Sender& to, Counter64& taken, uint64_t message,
                                        uint64_t per_round, uint64_t commits) {
  return {&taken, 0, commits, to.slot_base, to.slots, to.slot_bytes, message, per_round, -1};
}

ArrivalSums::ArrivalSums(std::vector<Sum> sums, Adder adder, SumsBy by)
    : sums_(std::move(sums)), adder_(adder), by_(by), states_(std::make_unique<State[]>(sums_.size())) {
  std::size_t most = 0;
  for (const Sum& sum : sums_) most = std::max(most, sum.parts.size());
  found_.resize(most);
}

void ArrivalSums::open(std::size_t sum, uint64_t round, int64_t floats) {
  State& state = states_[sum];
  // The round before is over: all processors have passed await(), so it was claimed, and a pump that had claimed it has
  // read `floats`. One that reads the new figure with the old word does not get the claim.
  state.floats.store(floats, std::memory_order_relaxed);
  state.last_peer.store(-1, std::memory_order_relaxed);
  state.word.store(word(round, kOpen),
                   std::memory_order_release);  // pairs with the loads in look() and await()
}

SumsBy ArrivalSums::by(uint64_t number) const {
  if (by_ != SumsBy::kMixed) return by_;
  constexpr SumsBy kAll[] = {SumsBy::kDepth, SumsBy::kProcessors, SumsBy::kPump};
  return kAll[scattered(number) % 3];
}

bool ArrivalSums::have_arrived(const Sum& sum, uint64_t round) const {
  for (const Part& part : sum.parts)
    if (part.peer >= 0 && !part.is_there(round)) return false;
  return true;
}

const ArrivalSums::Part& ArrivalSums::accumulator(const Sum& sum) const {
  return sum.parts[sum.parts[0].peer < 0 ? 1 : 0];
}

// ---- processors

bool ArrivalSums::awaits_arrivals(std::size_t sum, uint64_t round) const {
  const SumsBy by = this->by(number(sum, round));
  return by == SumsBy::kPump || (by == SumsBy::kDepth && sums_[sum].counts_arrivals);
}

// Whoever adds can go on, or the pump is done. Sleeps on `passed`.
struct ArrivalSums::Ready {
  ArrivalSums& all;
  const std::size_t sum;
  const uint64_t round;
  const bool by_pump;  // no claim but the pump's is to be

  bool operator()() {
    // Acquire: pairs with the claim. What the claimer had seen arrive is visible here, too.
    const uint64_t word = all.states_[sum].word.load(std::memory_order_acquire);
    if (word == ArrivalSums::word(round, kProcessors)) return true;
    // Pairs with the raise in look(): the pump's own loads and stores are visible. Sequentially consistent, as who is
    // about to sleep has to look (dma/wait.h).
    if (Counter64::has_reached(all.passed_.value.load(std::memory_order_seq_cst), needed())) return true;
    return word == ArrivalSums::word(round, kOpen) && !by_pump && all.have_arrived(all.sums_[sum], round);
  }
  uint64_t needed() const { return all.number(sum, round) + 1; }
  uint64_t seen() const { return all.passed_.load(); }
  std::atomic<uint32_t>& sleep_on() { return all.passed_.asleep; }
};

Fault ArrivalSums::await(std::size_t sum, uint64_t round, WaitPoint at, const WaitContext& context,
                         Foresight& foresight, std::size_t place) {
  const Sum& own = sums_[sum];
  State& state = states_[sum];
  Ready ready{*this, sum, round, by(number(sum, round)) == SumsBy::kPump};
  for (;;) {
    if (!ready()) {
      const auto missing = std::ranges::find_if(
          own.parts, [&](const Part& part) { return part.peer >= 0 && !part.is_there(round); });
      const bool is_missing = missing != own.parts.end();
      const int64_t began = context.meter && is_missing ? steady_ns() : 0;
      if (Fault fault = wait_foreseen(ready, at, context, foresight, place)) {
        for (const Part& part : own.parts) {
          if (part.peer < 0 || part.is_there(round)) continue;
          fault.at.peer = part.peer;
          fault.seen = part.counter->load();
          fault.needed = part.needed(round);
          return fault;
        }
        fault.at.what = "sum by the pump";
        return fault;
      }
      if (began != 0) {
        const int32_t last = state.last_peer.load(std::memory_order_relaxed);
        context.meter->count_peer(last >= 0 ? last : missing->peer, steady_ns() - began);
      }
    }
    // Acquire-release: who sees this claim, sees what we have seen arrive.
    uint64_t seen = state.word.load(std::memory_order_acquire);
    if (seen == word(round, kOpen) &&
        state.word.compare_exchange_strong(seen, word(round, kProcessors), std::memory_order_acq_rel,
                                           std::memory_order_acquire))
      return {};
    if (seen == word(round, kProcessors)) return {};
    // The pump's: it adds, or has added. Its claim came after what made us ready, unless it was `passed`.
    if (passed_.has_reached(ready.needed())) return {};
  }
}

const std::byte* ArrivalSums::in_place(std::size_t sum, uint64_t round) const {
  // The claim is final, and await() has seen it.
  const bool by_pump = states_[sum].word.load(std::memory_order_relaxed) == word(round, kPump);
  return by_pump ? accumulator(sums_[sum]).slot(round) : nullptr;
}

// ---- the pump

bool ArrivalSums::must_look() const {
  if (by_ != SumsBy::kPump && by_ != SumsBy::kMixed) return false;
  const uint64_t round = next_ / sums_.size();
  return states_[next_ % sums_.size()].word.load(std::memory_order_relaxed) == word(round, kOpen);
}

size_t ArrivalSums::look(bool is_idle) {
  for (size_t gone_over = 0;; ++gone_over) {
    const std::size_t at = next_ % sums_.size();
    const uint64_t round = next_ / sums_.size();
    const Sum& sum = sums_[at];
    State& state = states_[at];
    // Acquire: pairs with open().
    uint64_t seen = state.word.load(std::memory_order_acquire);
    if (seen < word(round, kOpen)) return gone_over;  // this round of it has not begun
    bool has_added = false;
    if (seen == word(round, kOpen)) {
      for (; part_ < sum.parts.size(); ++part_) {
        const Part& part = sum.parts[part_];
        if (part.peer < 0 || part.is_there(round)) continue;
        state.last_peer.store(part.peer, std::memory_order_relaxed);
        return gone_over;
      }
      const SumsBy by = this->by(next_);
      const int64_t floats = state.floats.load(std::memory_order_relaxed);
      const auto bytes = static_cast<uint64_t>(floats) * sizeof(float) * sum.parts.size();
      bool claims = by == SumsBy::kPump || (by == SumsBy::kDepth && is_idle && bytes <= kWorth);
      if (claims && !std::ranges::all_of(sum.parts, [&](const Part& p) { return p.is_there(round); })) {
        // The own part has not been committed, and no processor asks for the sum before it has done so: the commits
        // bring us back here. Where others wait before them, they may take long.
        if (by == SumsBy::kPump || is_idle) return gone_over;
        claims = false;
      }
      // Acquire-release: what the word said before is still so. Nobody else adds from here on, and no processor passes
      // await() before `passed` is raised.
      if (claims && state.word.compare_exchange_strong(seen, word(round, kPump), std::memory_order_acq_rel,
                                                       std::memory_order_relaxed)) {
        add(sum, round, floats);
        has_added = true;
      }
    }
    ++next_;
    part_ = 0;
    // Release: publishes the sum, and what we saw arrive; pairs with Ready.
    passed_.raise();
    if (has_added) return gone_over + 1;
  }
}

void ArrivalSums::add(const Sum& sum, uint64_t round, int64_t floats) {
  for (std::size_t p = 0; p < sum.parts.size(); ++p)
    found_[p] = reinterpret_cast<const float*>(sum.parts[p].slot(round));
  adder_.add(adder_.context, found_.data(), static_cast<int>(sum.parts.size()),
             reinterpret_cast<float*>(accumulator(sum).slot(round)), floats);
}

}  // namespace ark::dma
