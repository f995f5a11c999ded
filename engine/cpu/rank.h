// One rank on the CPU: its memory, its program bound to it, and what a processor does at one phase instance.
// Shared by lockstep and loop, which only differ in who calls what when.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dma/counter.h"
#include "dma/foresight.h"
#include "dma/reduce_on_arrival.h"
#include "engine/cpu/kv_pages.h"
#include "engine/cpu/step_kernel.h"
#include "engine/run/executor.h"
#include "engine/run/mailbox.h"
#include "engine/run/step_cost.h"

namespace ark {

class Rank {
 public:
  // A phase execution of a step, in program order. Known at prepare(); times are relative to the step.
  struct Instance {
    PhaseId phase = 0;
    int32_t trip = 0;
    // Messages of each channel before this execution within one step; parallel to Message channels below.
    struct Message {
      int32_t channel = 0;  // index into Program::channels
      int64_t ordinal = 0;  // within the step
    };
    std::vector<Message> sends, receives;  // a phase sends on at most one channel
    int32_t sum = kNone;                   // of sums_: an all-reduce that the pump may add up
  };

  // `mailbox` may have more readers; this one's index in it is `reader`. Throws Error(kUnsupported) if an
  // operator has no kernel, kExhausted without memory.
  Rank(const RankSetup& setup, const ExecutorOptions& options, Mailbox& mailbox, int reader);
  ~Rank();

  const Program& program() const { return program_; }
  const std::vector<Instance>& schedule() const { return schedule_; }
  int index() const { return program_.rank; }

  // How many processors may take part in step n, as whoever posted it says.
  int32_t most_processors(uint64_t n) const;
  // Leader, while no processor is inside a step: reads the descriptor of step n (from 1), in which processors
  // [0, active) take part. The last of them gives the others' signals too: what waits for them counts all processors.
  void begin_step(uint64_t n, int32_t active);
  // The same for the end: publishes the results. `done` of the mailbox is raised.
  void end_step(uint64_t n);

  // Whether the waits of an instance are over; for lockstep. `context` as below.
  bool is_ready(const Instance& at) const;
  // The processor's own thread begins a step, as a processor of a loop does before its first wait.
  void enter_step(int32_t processor) { processors_[processor].foresight.begin(dma::steady_ns()); }
  // Waits for them. `barrier`: only for what other ranks do.
  dma::Fault wait(const Instance& at, int32_t processor, bool barrier, const dma::WaitContext& context);
  // Runs the processor's tiles.
  void run(const Instance& at, int32_t processor);
  // Signals: the phase's counter, the message's arrival, the credits of what was read.
  dma::Fault finish(const Instance& at, int32_t processor, const dma::WaitContext& context);
  // Barrier mode: until all processors have finished this instance.
  dma::Fault wait_all(const Instance& at, int32_t processor, const dma::WaitContext& context);

  // What the processor has sent to other ranks since it was asked last.
  SentBytes take_sent_bytes(int32_t processor) {
    return std::exchange(processors_[processor].sent_bytes, {});
  }
  // Who added up the rank's all-reduces since it was asked last. Leader.
  ReduceCounts take_reduced() { return std::exchange(reduced_, {}); }

  // A buffer of pages, between steps.
  KvPages kv_pages(BufferId pages) const;

  // A page's part in each buffer of keys or values, in their order (StepRunner).
  int64_t page_bytes() const { return page_bytes_; }
  void read_page(int32_t page, std::byte* to) const;
  void write_page(int32_t page, std::span<const int32_t> tokens, const std::byte* from);

 private:
  struct PhaseInfo {
    const StepKernel* kernel = nullptr;
    VariantFacts facts;
    std::size_t first_wait = 0;            // how many waits all phases before it have
    int32_t outputs = 1;                   // kGeneric
    std::optional<Attributes> attributes;  // kGeneric with symbols: evaluated in begin_step
    int64_t grid = 0;                      // of this step
    bool joins = false;                    // its processors share memory, and the last one joins their parts
  };
  struct Link {
    dma::Sender sender;      // outgoing
    dma::Receiver receiver;  // incoming
    int64_t messages = 0;    // a step
  };
  struct alignas(64) Processor {
    Scratch scratch;
    std::vector<TensorView> views;
    Range sent;                   // bytes of the message that run() has filled
    SentBytes sent_bytes;         // to other ranks, since taken
    dma::Foresight foresight{0};  // by wait, of all phases
  };
  struct PageBuffer {  // of keys or values
    std::byte* start;
    int64_t bytes;  // a page
  };
  struct alignas(64) Arrivals {
    std::atomic<uint32_t> count{0};
  };

  void schedule_phases();
  void bind_channels(dma::Group& group);
  void allocate(const Binding& binding, const WeightStore& weights);
  void bind_kernels();
  void bind_sums(dma::Group& group);
  std::size_t sent_before(std::size_t at) const;
  bool is_awaited_in_time(std::size_t at) const;

  void read_descriptor(const StepRecord& record);
  void copy_pages(std::span<const PageCopy> copies);
  std::byte* page_part(const PageBuffer& buffer, int32_t page) const;
  void read_plain(const PlainStep& step);
  void set_sizes(const SymbolValues& symbols);
  Dims dims_of(const Buffer& buffer, bool greatest) const;
  void gather_operands(const Instance& at, std::vector<TensorView>& views) const;
  int64_t generic_grid(PhaseId phase) const;

  // Value of `phase`'s counter when instance `instance` (over all steps) is complete.
  uint32_t target(int64_t instance) const {
    return options_.counter_base +
           static_cast<uint32_t>(options_.processors) * static_cast<uint32_t>(instance + 1);
  }
  uint64_t message(const Link& link, int64_t ordinal) const {
    return static_cast<uint64_t>(frame_.step * link.messages + ordinal);
  }
  const Phase& phase_of(const Instance& at) const { return program_.phases[at.phase]; }
  int64_t own_instance(const Instance& at) const;
  dma::WaitPoint point(const char* what, const Instance& at, int32_t processor, int peer = -1) const {
    return {what, program_.rank, processor, at.phase, at.trip, peer};
  }
  // Calls f(counter, value, what, peer) with the counter that a wait looks at and the value that ends it; not where
  // there is nothing to wait for.
  template <typename F>
  auto with_target(const Instance& at, const Wait& wait, F&& f) const;

  // Signals that `processor` gives, its own and those of processors that take no part.
  int32_t signals_of(int32_t processor) const {
    return processor + 1 == active_ ? options_.processors - processor : 1;
  }

  const Program& program_;
  const ExecutorOptions options_;
  Mailbox& mailbox_;
  const int reader_;
  const simd::Table& simd_;
  std::vector<PhaseInfo> phases_;
  std::vector<Instance> schedule_;
  std::vector<Link> links_;                       // by program channel
  dma::Pump* pump_ = nullptr;                     // looks after sums_
  std::unique_ptr<dma::ArrivalSums> sums_;        // null: there are none, or they are not for the pump
  std::vector<BufferId> summed_;                  // by sum: the own part
  std::size_t waits_ = 0;                         // of all phases: places of foresight, those of sums follow
  std::vector<TensorView> views_;                 // by buffer: address and this step's dims
  mutable std::vector<dma::Counter32> counters_;  // by phase
  std::vector<Arrivals> readers_;                 // by phase: processors that are through with its inboxes
  Arrivals joining_;  // processors that are through with their part of what is joined
  std::vector<Processor> processors_;
  dma::Memory memory_;  // activations, io
  dma::Memory pages_;   // keys and values
  dma::Memory shared_;  // PhaseCall::shared, touched on use
  int64_t shared_floats_ = 0;
  std::vector<PageBuffer> page_buffers_;
  int64_t page_bytes_ = 0;  // of all of them
  StepFrame frame_;
  ReduceCounts reduced_;  // leader
  int32_t active_;        // processors of this step
  SlotState state_;
  std::vector<int64_t> vals_;
  SymbolValues symbols_;  // that vals_ were evaluated for
};

}  // namespace ark
