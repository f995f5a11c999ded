// What a step of a model would take, and send, were it split over many ranks: each rank's real program, with the times
// that its phases take on one rank, and links as the LogGP model has them (Alexandrov et al., SPAA 1995).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/ir/constant.h"
#include "engine/program/opcodes.h"
#include "engine/program/program.h"

namespace ark {

// Its sender is busy for gap + bytes / bandwidth with a message, which is there `latency` after that.
struct LinkRates {
  double latency = 0, gap = 0;  // seconds
  double bandwidth = 1;         // bytes a second
  double sending(double bytes) const { return gap + bytes / bandwidth; }
};

// Where ranks run, machine by machine. Inside one a rank's own processors copy; between two each machine has one
// device, which sends one message at a time and holds up nobody.
struct RankPlacement {
  int32_t machine_ranks = 1;  // a multiple of the ranks, or more than these
  int32_t running = 1;        // of a machine's ranks: so many have processors at the same time
  LinkRates inside, between;
};

// A program, and its sizes in one step ("tokens", "rows", "items", "pages").
class SizedProgram {
 public:
  SizedProgram(const Program& program, const SymbolValues& sizes);
  const Program& program() const { return *program_; }
  OpCode code(const Phase& phase) const { return program_->variants[phase.variant].code; }
  int64_t bytes(BufferId buffer) const;
  int64_t weight_bytes(const Phase& phase) const;
  // What a phase's time grows with: bytes of the weights that a product reads, else of what it reads and writes.
  int64_t work(const Phase& phase) const;

 private:
  const Program* program_;
  std::vector<int64_t> vals_;
};

// How fast one rank reads its weights from memory: alone on a machine, and beside as many as run there. Bytes a second.
struct ReadRates {
  double alone = 0, shared = 0;
};

// What phases take: as long as the one of their name on one rank, for as much of its work as there is.
class PhaseCosts {
 public:
  // `whole`: RankPrograms' program of one rank; `seconds`: of each of its phases.
  PhaseCosts(const SizedProgram& whole, std::span<const double> seconds, const ReadRates& read);
  double seconds(const SizedProgram& program, const Phase& phase) const;
  double least() const { return least_; }  // of any phase: what it takes to begin and end one

 private:
  struct Measured {
    double seconds = 0, work = 0;
    bool reads_memory = false;  // its weights come from memory, not from a cache
  };
  double scaled(const Measured& measured, double work) const;

  ReadRates read_;
  double least_ = 0;
  std::map<std::string, Measured> by_name_;
  std::map<OpCode, Measured> by_code_;  // of names that one rank does not have: the sums
};

struct StepPlan {
  double seconds = 0;         // until the last rank is through
  double computing = 0;       // of these, rank 0's processors, without sends and receives
  int64_t bytes = 0;          // from rank to rank, of all ranks: what ark_exchanged_bytes_total grows by
  int64_t bytes_between = 0;  // of these, from machine to machine
};

// Discrete events: every rank runs its program, and waits for its messages, credits and processors.
StepPlan plan_by_events(std::span<const SizedProgram> programs, const PhaseCosts& costs,
                        const RankPlacement& placement);
// Rank 0's program alone, whose parts are the largest; all others do at each time what it does.
StepPlan plan_by_formula(const SizedProgram& first, const PhaseCosts& costs, const RankPlacement& placement);

// What a rank holds of messages.
int64_t inbox_bytes(const Program& program);

// How often weights can be cut.
struct CutLimits {
  struct Limit {
    int32_t weights = 0;  // so many
    std::string name;     // one of them
  };
  std::map<int64_t, Limit> limits;  // by parts: of those that have less parts than there are ranks
  bool enough = false;              // others have as many parts as there are ranks, or more
};
// By the programs of the first rank and the last, whose parts are the largest and the smallest.
CutLimits cut_limits(const Program& first, const Program& last, std::span<const ConstantPtr> constants);

}  // namespace ark
