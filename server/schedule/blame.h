// Who took a request's time: each moment from its arrival to its last byte is one cause's. Pure functions; record.h
// adds up what they give.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "engine/run/step_cost.h"

namespace ark::schedule {

enum class Cause : uint8_t {
  kPrompt,
  kTokens,
  kQueue,
  kOthersPrompts,
  kOthersStreams,
  kPages,
  kLostCore,
  kLateRank,
  kWire,
  kPageFaults,
  kRestart,
  kPeers,
  kReader,
  kServer,
};
inline constexpr std::size_t kCauses = 14;

struct CauseText {
  const char *name, *about;
};
const CauseText& text_of(Cause cause);

// Nanoseconds by cause.
struct Shares {
  std::array<int64_t, kCauses> ns{};

  int64_t& operator[](Cause cause) { return ns[static_cast<std::size_t>(cause)]; }
  int64_t operator[](Cause cause) const { return ns[static_cast<std::size_t>(cause)]; }
  int64_t sum() const;
  void add(const Shares& other);
};
Shares difference(const Shares& after, const Shares& before);

// The cause to name: the greatest of those that are not the request's own work, if it took a tenth of the time or more;
// else that work, its prompt or its tokens.
Cause named(const Shares& shares);

// A step that is done.
struct StepFacts {
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin{}, end{};  // begin: when it was posted, or the step before was done, which is later
  int32_t decodes = 0, prompts = 0, drafts = 0;  // tokens: of streams, of prompts, guesses
  double alone = 0;                              // seconds that its streams alone take; 0: not known
  StepCost cost;

  int64_t ns() const { return std::chrono::nanoseconds(end - begin).count(); }
};

// What one sequence has of a step.
struct StepPart {
  int32_t prompt = 0;          // tokens of its prompt, or of what it had computed before; 0: its next token
  int32_t again = 0;           // those of them that were computed before,
  Cause redo = Cause::kPages;  // for this reason
  bool waited_for_pages = false;  // before the step
  int64_t peers_ns = 0;           // likewise, for pages of other servers
};

// The step's time as a sequence that takes part sees it, and as one that waits does. Either sums up to ns().
Shares shares_of(const StepFacts& step, const StepPart& part);
Shares shares_of_waiting(const StepFacts& step);

// `ns` of waiting, of which `peers_ns` for other servers; in the rest others' steps took `steps` (it may be more: they
// began before): what is left is the server's own.
Shares shares_of_wait(int64_t ns, Shares steps, bool for_pages, int64_t peers_ns = 0);

}  // namespace ark::schedule
