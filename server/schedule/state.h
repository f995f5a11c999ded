// What the scheduler's policies work on. Scheduler thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/run/runner.h"
#include "server/schedule/drafter.h"
#include "server/schedule/economy.h"
#include "server/schedule/pace.h"
#include "server/schedule/page_allocator.h"
#include "server/schedule/page_source.h"
#include "server/schedule/record.h"
#include "server/schedule/sequence.h"

namespace ark::schedule {

struct SchedulerOptions {
  int32_t max_sequences = 0;       // running at once; 0: the runner's slots
  int32_t max_batched_tokens = 0;  // of one step; 0: the runner's max_tokens
  int32_t max_queue = 256;         // waiting requests beyond which submit() refuses
  int32_t max_restarts = 5;        // of a runner that is lost and begins anew, within a minute
  bool prefix_cache = true;        // sequences that begin alike share pages, where the runner allows it
  // Seconds that a step with streams may take; 0: Pace::kStretch times what it takes without prompts; below: any.
  double slo_itl = 0;
  bool shortest_first = true;        // of prompts, else by arrival
  int32_t max_drafts = kMostDrafts;  // of a sequence in a step, where the runner allows any
  double slo_ttft = 0;               // seconds until a first token; 0: any, and Economy delays none
  EconomyOptions economy;
};

// For /metrics; counters are monotonic.
struct SchedulerStats {
  int64_t running = 0, waiting = 0, pages_held = 0, pages_cached = 0, pages_total = 0;  // gauges
  int64_t step_sequences = 0, step_tokens = 0;  // gauges: of the latest step
  int64_t gather = 1, processors = 0;           // gauges: Economy's point
  int64_t steps = 0, prompt_tokens = 0, generated_tokens = 0, preemptions = 0, finished = 0, cancelled = 0,
          refused = 0, nonfinite = 0, restarts = 0, prefix_queries = 0, prefix_hits = 0, drafts = 0,
          draft_tokens = 0, accepted_tokens = 0, sent_bytes = 0, unsent_zeros = 0, reduced_by_pump = 0,
          reduced_by_processors = 0;
  // By rank, as far as any was ever waited for: nanoseconds that steps took longer as it was late, or had no core.
  std::vector<int64_t> late_ns, coreless_ns;
};

// What was computed for a client since the start.
struct ClientWork {
  // Tokens of prompts and generated ones, weighted, and lifted to others' on arrival; what that must reach before one
  // that is late has its turn again.
  int64_t served = 0, next_turn = 0;
};

// A posted step, and which row belongs to whom.
struct Flight {
  uint64_t step = 0;
  // (sequence, index of the token that the row is about)
  std::vector<std::pair<std::shared_ptr<Sequence>, int32_t>> rows;
  std::vector<std::shared_ptr<Sequence>> members;
  std::vector<StepPart> parts;  // of each member
  Pace::Load load;
  bool is_alone = false;  // what its sequences go on with is not known before it is done
};

struct SchedulerState {
  // `given`: zeros become what the runner allows, more becomes as much.
  SchedulerState(const RunnerLimits& limits, const SchedulerOptions& given);

  const RunnerLimits limits;
  const SchedulerOptions options;
  PageAllocator pages;
  std::vector<int32_t> free_slots;
  std::deque<std::shared_ptr<Sequence>> waiting;  // without a slot, by arrival
  // With a slot, by arrival; also done or preempted ones in flight.
  std::vector<std::shared_ptr<Sequence>> running;
  std::deque<Flight> flights;
  Pace pace;
  Economy economy;
  std::chrono::steady_clock::time_point now{};  // of the latest turn
  uint64_t last_look = 0;                       // arrival of whose pages were looked up last (look_ahead)
  std::chrono::steady_clock::time_point held_until{};  // those that wait are: until then, for others
  std::unique_ptr<Drafter> drafter;                    // null: drafts are looked up only
  PageSource* neighbours = nullptr;                    // null: there are none
  int32_t passed_over = 0;  // times since they were asked last that they seemed too slow
  Ledger ledger;
  std::map<uint32_t, ClientWork> work;  // by client
  SchedulerStats counts;
  std::deque<std::chrono::steady_clock::time_point> losses;  // of the last minute
};

}  // namespace ark::schedule
