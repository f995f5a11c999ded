// What runs Programs: one contract for lockstep, loop and device executors.
//
// Owner: the runner. Steps are numbered 1, 2, ... in the order of post(). All ranks of this process are
// driven by one executor; ranks of other processes by theirs, with the same steps in the same order.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/expr.h"
#include "base/ir/kernel.h"
#include "base/machine.h"
#include "dma/group.h"
#include "engine/program/program.h"
#include "engine/run/isa.h"
#include "engine/run/ranks_here.h"
#include "engine/run/runner.h"
#include "engine/run/step.h"
#include "engine/run/timeline.h"
#include "engine/run/weight_store.h"

namespace ark {

// One rank of this process. The pointers outlive the executor.
struct RankSetup {
  const Program* program = nullptr;
  const Binding* binding = nullptr;
  const WeightStore* weights = nullptr;
  dma::Group* group = nullptr;  // null if the program has one rank
};

struct ExecutorOptions {
  RunnerLimits limits;     // decoder programs
  int32_t max_items = 0;   // attention work items of a step, as compiled for
  int32_t processors = 1;  // per rank; equal on all ranks of the group
  RanksHere here;
  uint32_t counter_base = 0;  // where the phase counters start; tests put it near 2^32
  // Of ranks in processes: the channel by which others tell rank 0 what their steps cost (StepWords).
  std::optional<uint32_t> words_channel;
  int64_t lease = 0;         // steps a launch may run before it returns its threads; 0 = unbounded while busy
  bool barrier = false;      // ignore the phases' waits, join after each phase: the A/B oracle of the waits
  int32_t trace_events = 0;  // of the last steps, that each processor records for timeline()
  Isa isa = best_isa();
  dma::SumsBy sums = dma::sums_wish();  // who adds up all-reduces by posted links, on CPUs
  bool yields_cores = false;  // the loop uses fewer processors while other programs use their cores (Company)
  // To which CPUs each processor of this process's ranks is pinned; empty: none is.
  std::vector<CpuList> seats;
  std::chrono::milliseconds step_deadline{120'000};  // a wait inside a step that lasts longer is a fault
};

// Processors of loops that share what this process may use.
inline int32_t processors_here(const Program& program, const ExecutorOptions& options) {
  return options.here.of(program.ranks) * options.processors;
}

// One run of a plain program: sizes of its symbols, and where inputs and outputs lie. The caller keeps it,
// and what the views point to, until poll() has returned the step.
struct PlainStep {
  SymbolValues symbols;
  std::vector<TensorView> inputs, outputs;  // by graph input / output index
};

// The dma channel (one of every kind between each ordered pair of ranks) that carries a program's channel: the
// channels between the same two ranks in the same direction, by name, take the kinds 0, 1, ... Equal on both ends.
uint32_t dma_channel_of(const Program& program, int32_t channel);

class Executor {
 public:
  virtual ~Executor() = default;  // ends all work first; steps in flight are lost

  // Binds memory and gets ready. Called once, before all else. Throws Error(kExhausted) if memory cannot be had.
  virtual void prepare(std::vector<RankSetup> ranks, const ExecutorOptions& options) = 0;
  // Starts a step. At most Mailbox::kDepth are in flight (Error(kInternal) beyond).
  virtual uint64_t post(const StepDescriptor& step) = 0;
  // The last posted step as executors of other processes take it: valid until kDepth more are posted.
  virtual std::span<const std::byte> posted_record() const = 0;
  // A step of another process of the group: its executor's posted_record(). Checked for its size only.
  virtual uint64_t post_record(std::span<const std::byte> record) = 0;
  // The next finished step in order, nullopt when `timeout` passes or nothing is in flight. Throws
  // Error(kUnavailable) with the fault (rank, processor, phase, trip, seen, needed) once something has stopped.
  virtual std::optional<StepResult> poll(std::chrono::microseconds timeout) = 0;
  // Ends all waits soon; poll and post then throw `why`. Any thread.
  virtual void abort(const std::string& why) = 0;
  // What the processors of this process did, if ExecutorOptions::trace_events > 0. Only while no step is in
  // flight; parks the loop. Throws Error(kUnsupported) where there is no loop.
  virtual Timeline timeline() = 0;
  // Whether the program's loop holds no thread now (always true of executors that have none).
  virtual bool is_parked() const { return true; }
};

// An executor whose ranks compute in this process's own memory: it also runs plain programs, and lets tools bring and
// take caches.
class HostExecutor : public Executor {
 public:
  virtual uint64_t post_plain(const PlainStep& step) = 0;
  // One head of one cached token: `head` counts the rank's own, `at` is the place in the page.
  struct CachePlace {
    std::size_t rank = 0;  // index into prepare()'s ranks
    BufferId pages = kNone;
    int32_t page = 0, at = 0, head = 0;
  };
  // Its elements as f32, as far as the pages' type holds them. Only while no step is in flight.
  virtual void read_cached(const CachePlace& place, std::span<float> to) = 0;
  virtual void write_cached(const CachePlace& place, std::span<const float> from) = 0;
  // As of StepRunner, of the ranks given to prepare().
  virtual int64_t page_bytes() const = 0;
  virtual void read_page(int32_t page, std::span<std::byte> to) const = 0;
  virtual void write_page(int32_t page, std::span<const int32_t> tokens, std::span<const std::byte> from) = 0;
};

// One thread, all ranks, tile by tile in program order: the oracle. Needs direct links.
std::unique_ptr<HostExecutor> make_lockstep_executor();
// Persistent loop threads of the process-wide pool.
std::unique_ptr<HostExecutor> make_loop_executor();

}  // namespace ark
