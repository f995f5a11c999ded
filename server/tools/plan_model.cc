#include "server/tools/plan_model.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/index.h"
#include "engine/program/unroll.h"
#include "engine/run/weight_store.h"

namespace ark {
namespace {

constexpr uint64_t kSlots = 2;  // halves of an inbox: a message waits until the one before the last is read
// What is read no faster than that many times memory's rate comes from memory.
constexpr double kFromMemory = 1.1;

std::string key_of(const SizedProgram& program, const Phase& phase) {
  return std::string(name_of(program.code(phase))) + " " + phase.name;
}

// What all ranks together send and have sent, in bytes.
struct Traffic {
  int64_t inside = 0, between = 0;
  void add(int64_t bytes, bool is_between) { (is_between ? between : inside) += bytes; }
};

// Ranks of rank 0's machine that want its processors, for each that can have them.
double sharing(const RankPlacement& placement, int32_t ranks) {
  return std::max(1.0, static_cast<double>(std::min(placement.machine_ranks, ranks)) / placement.running);
}

// Bytes of the message that a phase sends; of rows of zeros the share that has none, in the mean.
double message_bytes(const SizedProgram& program, const Phase& phase) {
  const auto dense = static_cast<double>(program.bytes(phase.operands[0].buffer));
  return program.code(phase) == OpCode::kSendRows ? dense / program.program().ranks : dense;
}

// The inboxes that a phase reads, and all their bytes in a step.
struct Inboxes {
  std::vector<BufferId> buffers;
  double bytes = 0;
};

Inboxes inboxes_of(const SizedProgram& program, const Phase& phase) {
  Inboxes all;
  const double share = program.code(phase) == OpCode::kRecvRows ? 1.0 / program.program().ranks : 1.0;
  for (const Operand& operand : phase.operands) {
    if (operand.buffer == kNone || program.program().buffers[operand.buffer].kind != BufferKind::kInbox)
      continue;
    all.buffers.push_back(operand.buffer);
    all.bytes += share * static_cast<double>(program.bytes(operand.buffer));
  }
  return all;
}

class Events {
 public:
  Events(std::span<const SizedProgram> programs, const PhaseCosts& costs, const RankPlacement& placement)
      : programs_(programs),
        costs_(costs),
        placement_(placement),
        ranks_(programs.size()),
        ways_(programs.size() * programs.size()),
        machines_((programs.size() - 1) / at(placement.machine_ranks) + 1) {
    for (Machine& machine : machines_) machine.free.assign(at(placement.running), 0);
  }

  StepPlan run() {
    for (;;) {
      std::optional<std::size_t> next;
      double first = 0;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        const std::optional<double> ready = begin_of(r);
        if (!ready || (next && !(*ready < first))) continue;
        next = r;
        first = *ready;
      }
      if (!next) break;
      run_phase(*next, first);
    }
    StepPlan plan;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      ARK_CHECK(ranks_[r].next == phases(r).size(), "a rank of a plan waits for what nobody sends");
      plan.seconds = std::max(plan.seconds, ranks_[r].clock);
    }
    plan.computing = ranks_[0].computing;
    const auto ranks = static_cast<int64_t>(ranks_.size());
    plan.bytes_between = sent_.between + rows_.between / ranks;
    plan.bytes = plan.bytes_between + sent_.inside + rows_.inside / ranks;
    return plan;
  }

 private:
  struct RankState {
    std::size_t next = 0;  // phase
    double clock = 0, computing = 0;
  };
  struct Way {                              // from one rank to another
    std::vector<double> arrivals, credits;  // of its messages, and of those that have been read
  };
  struct Machine {
    std::vector<double> free;  // from when on processors of a rank are
    double device = 0;         // the same of what sends to other machines
  };

  const std::vector<Phase>& phases(std::size_t r) const { return programs_[r].program().phases; }
  Way& way(std::size_t from, std::size_t to) { return ways_[from * ranks_.size() + to]; }
  std::size_t machine_of(std::size_t r) const { return r / at(placement_.machine_ranks); }
  const LinkRates& link(std::size_t a, std::size_t b) const {
    return machine_of(a) == machine_of(b) ? placement_.inside : placement_.between;
  }
  std::size_t peer(std::size_t r, int32_t channel) const {
    return at(programs_[r].program().channels[channel].peer);
  }
  std::vector<double>& processors(std::size_t r) { return machines_[machine_of(r)].free; }

  // When a rank's next phase begins; nothing while what it waits for is not known.
  std::optional<double> begin_of(std::size_t r) {
    const RankState& rank = ranks_[r];
    if (rank.next == phases(r).size()) return std::nullopt;
    const Phase& phase = phases(r)[rank.next];
    const OpCode code = programs_[r].code(phase);
    double time = rank.clock;
    if (is_send(code)) {
      const std::size_t to = peer(r, phase.channel);
      const Way& sent = way(r, to);
      if (sent.arrivals.size() >= kSlots) {
        const std::size_t read = sent.arrivals.size() - kSlots;
        if (sent.credits.size() <= read) return std::nullopt;
        time = std::max(time, sent.credits[read] + link(r, to).latency);
      }
    } else if (is_receive(code)) {
      for (const BufferId inbox : inboxes_of(programs_[r], phase).buffers) {
        const Way& from = way(peer(r, programs_[r].program().buffers[inbox].channel), r);
        if (from.arrivals.size() <= from.credits.size()) return std::nullopt;
        time = std::max(time, from.arrivals[from.credits.size()]);
      }
    }
    return std::max(time, *std::ranges::min_element(processors(r)));
  }

  void run_phase(std::size_t r, double begin) {
    const SizedProgram& program = programs_[r];
    RankState& rank = ranks_[r];
    const Phase& phase = phases(r)[rank.next++];
    const OpCode code = program.code(phase);
    double& free = *std::ranges::min_element(processors(r));
    if (is_send(code)) {
      rank.clock = begin + placement_.inside.sending(message_bytes(program, phase));
      send(r, phase);
    } else if (is_receive(code)) {
      const Inboxes inboxes = inboxes_of(program, phase);
      rank.clock = begin + costs_.least() + inboxes.bytes / placement_.inside.bandwidth;
      for (const BufferId inbox : inboxes.buffers)
        way(peer(r, program.program().buffers[inbox].channel), r).credits.push_back(rank.clock);
    } else {
      const double seconds = costs_.seconds(program, phase);
      rank.clock = begin + seconds;
      rank.computing += seconds;
    }
    free = rank.clock;
  }

  void send(std::size_t r, const Phase& phase) {
    const std::size_t to = peer(r, phase.channel);
    const bool is_between = machine_of(r) != machine_of(to);
    double arrival = ranks_[r].clock;
    if (is_between) {
      double& device = machines_[machine_of(r)].device;
      device = std::max(device, arrival) + placement_.between.sending(message_bytes(programs_[r], phase));
      arrival = device;
    }
    way(r, to).arrivals.push_back(arrival + link(r, to).latency);
    Traffic& traffic = programs_[r].code(phase) == OpCode::kSendRows ? rows_ : sent_;
    traffic.add(programs_[r].bytes(phase.operands[0].buffer), is_between);
  }

  const std::span<const SizedProgram> programs_;
  const PhaseCosts& costs_;
  const RankPlacement& placement_;
  std::vector<RankState> ranks_;
  std::vector<Way> ways_;
  std::vector<Machine> machines_;
  Traffic sent_, rows_;  // rows: as if all were sent
};

}  // namespace

SizedProgram::SizedProgram(const Program& program, const SymbolValues& sizes) : program_(&program) {
  for (const Val& val : program.vals) vals_.push_back(val.e.evaluate(sizes));
}

int64_t SizedProgram::bytes(BufferId buffer) const {
  const Buffer& b = program_->buffers[buffer];
  int64_t elements = 1;
  for (const ValId dim : b.dims) elements *= vals_[dim];
  return bytes_of(b.dtype, elements);
}

int64_t SizedProgram::weight_bytes(const Phase& phase) const {
  int64_t bytes = 0;
  for (const Operand& operand : phase.operands)
    if (operand.buffer != kNone && program_->buffers[operand.buffer].weight != kNone)
      bytes += packed_bytes(program_->weights[program_->buffers[operand.buffer].weight]);
  return bytes;
}

int64_t SizedProgram::work(const Phase& phase) const {
  if (is_product(code(phase)) || code(phase) == OpCode::kExpertMatMul) return weight_bytes(phase);
  int64_t all = 0;
  for (const Operand& operand : phase.operands) {
    if (operand.buffer == kNone) continue;
    const BufferKind kind = program_->buffers[operand.buffer].kind;
    if (kind != BufferKind::kWeight && kind != BufferKind::kKvPage) all += bytes(operand.buffer);
  }
  return all;
}

PhaseCosts::PhaseCosts(const SizedProgram& whole, std::span<const double> seconds, const ReadRates& read)
    : read_(read) {
  const std::vector<Phase>& phases = whole.program().phases;
  ARK_CHECK(phases.size() == seconds.size() && !phases.empty(), "times of other phases");
  least_ = *std::ranges::min_element(seconds);
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const auto work = static_cast<double>(whole.work(phases[i])),
               weights = static_cast<double>(whole.weight_bytes(phases[i]));
    const bool reads = is_product(whole.code(phases[i])) && weights <= seconds[i] * read.alone * kFromMemory;
    by_name_[key_of(whole, phases[i])] = {seconds[i], work, reads};
    Measured& all = by_code_[whole.code(phases[i])];
    all.seconds += seconds[i];
    all.work += work;
    all.reads_memory |= reads;
  }
}

double PhaseCosts::scaled(const Measured& measured, double work) const {
  if (!(measured.work > 0 && work > 0)) return least_;
  const double share = work / measured.work;
  const double own = least_ + std::max(0.0, measured.seconds - least_) * share;
  return measured.reads_memory ? std::max(own, work / read_.shared) : own;
}

double PhaseCosts::seconds(const SizedProgram& program, const Phase& phase) const {
  const auto work = static_cast<double>(program.work(phase));
  if (const auto found = by_name_.find(key_of(program, phase)); found != by_name_.end())
    return scaled(found->second, work);
  const auto found = by_code_.find(program.code(phase));
  return found == by_code_.end() ? least_ : scaled(found->second, work);
}

StepPlan plan_by_events(std::span<const SizedProgram> programs, const PhaseCosts& costs,
                        const RankPlacement& placement) {
  return Events(programs, costs, placement).run();
}

StepPlan plan_by_formula(const SizedProgram& first, const PhaseCosts& costs, const RankPlacement& placement) {
  const Program& program = first.program();
  const int64_t ranks = program.ranks;
  const int64_t near = std::min<int64_t>(placement.machine_ranks, ranks);
  const double shared = sharing(placement, program.ranks);
  StepPlan plan;
  double time = 0, device = 0, arrival = 0;  // of the last message to come
  const auto is_between = [&](int32_t channel) {
    return program.channels[channel].peer >= placement.machine_ranks;
  };
  for (const Phase& phase : program.phases) {
    const OpCode code = first.code(phase);
    if (is_send(code)) {
      const double bytes = message_bytes(first, phase);
      time += shared * placement.inside.sending(bytes);
      if (is_between(phase.channel)) {
        device = std::max(device, time) + static_cast<double>(near) * placement.between.sending(bytes);
        arrival = std::max(arrival, device + placement.between.latency);
      } else {
        arrival = std::max(arrival, time + placement.inside.latency);
      }
    } else if (is_receive(code)) {
      const Inboxes inboxes = inboxes_of(first, phase);
      time = std::max(time, arrival) + shared * (costs.least() + inboxes.bytes / placement.inside.bandwidth);
      // A part goes from each rank to each of these; parts of a whole and rows come once to each rank.
      const bool is_whole = code != OpCode::kRecvReduce;
      const int64_t part = code == OpCode::kRecvConcat ? first.bytes(phase.operands.back().buffer)
                                                       : first.bytes(phase.operands[0].buffer);
      for (const BufferId inbox : inboxes.buffers) {
        const int64_t bytes = part * (is_whole ? 1 : ranks);
        plan.bytes += bytes;
        if (is_between(program.buffers[inbox].channel)) plan.bytes_between += bytes;
      }
    } else {
      const double seconds = costs.seconds(first, phase);
      time += shared * seconds;
      plan.computing += seconds;
    }
  }
  plan.seconds = time;
  return plan;
}

int64_t inbox_bytes(const Program& program) {
  int64_t bytes = 0;
  for (const Channel& channel : program.channels)
    if (!channel.outgoing) bytes += static_cast<int64_t>(kSlots) * inbox_half(channel);
  return bytes;
}

CutLimits cut_limits(const Program& first, const Program& last, std::span<const ConstantPtr> constants) {
  using Axis = std::pair<int32_t, std::size_t>;  // of a constant
  std::map<Axis, int64_t> least;
  for (const WeightUse& use : last.weights)
    for (std::size_t axis = 0; axis < use.ranges.size(); ++axis) {
      const auto [it, is_new] = least.try_emplace({use.constant, axis}, use.ranges[axis].size());
      it->second = std::min(it->second, use.ranges[axis].size());
    }
  CutLimits result;
  for (const WeightUse& use : first.weights) {
    const Constant& constant = *constants[at(use.constant)];
    for (std::size_t axis = 0; axis < use.ranges.size(); ++axis) {
      const int64_t size = constant.dims[axis], part = use.ranges[axis].size();
      if (part == 0 || part == size) continue;
      const auto found = least.find({use.constant, axis});
      if (found == least.end() || found->second > 0) {
        result.enough = true;
        continue;
      }
      CutLimits::Limit& limit = result.limits[(size + part - 1) / part];  // a part of the largest is one unit
      if (++limit.weights == 1) limit.name = constant.name;
    }
  }
  return result;
}

}  // namespace ark
