#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/index.h"
#include "engine/lower/complete.h"
#include "engine/program/opcodes.h"
#include "engine/program/unroll.h"

namespace ark {
namespace {

// Elementary pieces of memory, each with who touched it last (instance numbers over steps; -1: nobody).
class Memory {
 public:
  Memory(const Program& program, const Binding& binding) : pieces_(program.buffers.size()) {
    const auto is_root = [&](std::size_t b) { return program.buffers[b].alias == kNone; };
    std::set<int64_t> borders;
    for (std::size_t b = 0; b < pieces_.size(); ++b) {
      if (!is_root(b)) continue;
      const Range memory = memory_of(program, binding, static_cast<BufferId>(b));
      borders.insert({memory.begin, memory.end});
    }
    const std::vector<int64_t> sorted(borders.begin(), borders.end());
    const auto piece = [&](int64_t border) {
      return std::lower_bound(sorted.begin(), sorted.end(), border) - sorted.begin();
    };
    for (std::size_t b = 0; b < pieces_.size(); ++b) {
      if (!is_root(b)) continue;
      const Range memory = memory_of(program, binding, static_cast<BufferId>(b));
      pieces_[b] = {piece(memory.begin), piece(memory.end)};
    }
    last_.resize(sorted.size());
  }

  // The latest instance that must be complete before this access.
  int64_t needed(const Access& access) const {
    int64_t latest = -1;
    for_each(access.buffer, [&](const Last& last) {
      latest = std::max({latest, last.writer, access.writes ? last.reader : -1});
    });
    return latest;
  }
  void touch(const Access& access, int64_t instance) {
    const Range range = pieces_[access.buffer];
    for (int64_t p = range.begin; p < range.end; ++p) {
      int64_t& last = access.writes ? last_[p].writer : last_[p].reader;
      last = std::max(last, instance);
    }
  }

 private:
  struct Last {
    int64_t writer = -1, reader = -1;
  };
  template <typename F>
  void for_each(BufferId buffer, F&& f) const {
    const Range range = pieces_[buffer];
    for (int64_t p = range.begin; p < range.end; ++p) f(last_[p]);
  }

  std::vector<Range> pieces_;  // per buffer; of aliases unused
  std::vector<Last> last_;
};

class Waits {
 public:
  Waits(Program& program, const Binding& binding)
      : program_(program),
        memory_(program, binding),
        instances_(unroll(program)),
        last_of_(program.phases.size(), -1),
        first_trip_(program.phases.size(), -1),
        last_message_(program.channels.size(), -1),
        waits_(program.phases.size()) {
    for (std::size_t i = 0; i < instances_.size(); ++i) {
      int64_t& first = first_trip_[instances_[i].phase];
      if (first < 0) first = static_cast<int64_t>(i);
    }
  }

  void run() {
    const auto count = static_cast<int64_t>(instances_.size());
    for (int64_t step = 0; step < 2; ++step) {
      for (int64_t i = 0; i < count; ++i) visit(step * count + i);
    }
    for (std::size_t p = 0; p < program_.phases.size(); ++p) {
      program_.phases[p].waits = std::move(waits_[p]);
      add_messages(program_.phases[p]);
    }
  }

 private:
  void visit(int64_t number) {
    const Instance& instance = instances_[number % static_cast<int64_t>(instances_.size())];
    // The instance before must be complete, or the counter's sum would not tell them apart.
    int64_t needed = last_of_[instance.phase];
    // So must the channel's message before: its commits and releases are counted in sums, too.
    for (const int32_t channel : channels_of(program_, program_.phases[instance.phase])) {
      needed = std::max(needed, last_message_[channel]);
    }
    const std::vector<Access> touched = accesses(program_, instance);
    for (const Access& access : touched) needed = std::max(needed, memory_.needed(access));
    for (const Wait& wait : waits_[instance.phase]) complete_ = std::max(complete_, target(wait, number));
    if (needed > complete_) {
      const Wait wait = wait_on(needed, number);
      waits_[instance.phase].push_back(wait);
      complete_ = std::max(complete_, target(wait, number));
      ARK_CHECK(complete_ >= needed, "a wait does not reach its instance");
    }
    for (const Access& access : touched) memory_.touch(access, number);
    last_of_[instance.phase] = number;
    for (const int32_t channel : channels_of(program_, program_.phases[instance.phase])) {
      last_message_[channel] = number;
    }
  }

  // The wait of instance `number` that reaches instance `needed`, or a later one.
  Wait wait_on(int64_t needed, int64_t number) const {
    const auto count = static_cast<int64_t>(instances_.size());
    const Instance& from = instances_[number % count];
    const Instance& to = instances_[needed % count];
    Wait wait{.kind = WaitKind::kPhase, .phase = to.phase};
    const int32_t repeat = program_.phases[from.phase].repeat;
    const bool is_same =
        to.phase == from.phase || (repeat != kNone && program_.phases[to.phase].repeat == repeat);
    if (is_same) {
      const bool is_this_trip =
          needed / count == number / count && to.trip == from.trip && to.phase != from.phase;
      wait.trip_offset = is_this_trip ? 0 : -1;
    }
    return wait;
  }

  // The instance that `wait` of instance `number` waits for; -1: none.
  int64_t target(const Wait& wait, int64_t number) const {
    const auto count = static_cast<int64_t>(instances_.size());
    return instance_of(wait.phase, awaited(program_, wait, instances_[number % count], number / count));
  }
  // Instance number `i` of a phase, as a number over all phases.
  int64_t instance_of(PhaseId phase, int64_t i) const {
    if (i < 0) return -1;
    const int32_t trips = trips_of(program_, phase);
    const int32_t repeat = program_.phases[phase].repeat;
    const int64_t period = repeat == kNone ? 0 : program_.repeats[repeat].count;
    return i / trips * static_cast<int64_t>(instances_.size()) + first_trip_[phase] + i % trips * period;
  }

  void add_messages(Phase& phase) const {
    const bool sends = is_send(program_.variants[phase.variant].code);
    for (const int32_t channel : channels_of(program_, phase)) {
      phase.waits.push_back({.kind = sends ? WaitKind::kCredit : WaitKind::kArrived, .channel = channel});
    }
  }

  Program& program_;
  Memory memory_;
  const std::vector<Instance> instances_;  // of one step
  std::vector<int64_t> last_of_;           // per phase: its last instance so far
  std::vector<int64_t> first_trip_;        // per phase: its first instance in a step
  std::vector<int64_t> last_message_;      // per channel: the last instance that sent or received on it
  std::vector<std::vector<Wait>> waits_;
  int64_t complete_ = -1;  // all instances up to this one are complete when the visited one runs its tiles
};

}  // namespace

void set_waits(Program& program, const Binding& binding) { Waits(program, binding).run(); }

}  // namespace ark
