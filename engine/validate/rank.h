// One rank's program, unrolled over steps: what its instances wait for, know, read and write.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/index.h"
#include "engine/program/unroll.h"
#include "engine/validate/validate.h"

namespace ark::validation {

inline constexpr int64_t kSteps = 2;

// Per rank: all its instances up to this number are complete. Numbers run over steps.
using Clock = std::vector<int64_t>;
inline void join(Clock& into, const Clock& from) {
  for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
}

// A message as one of its ends sees it.
struct Message {
  int64_t instance = -1;  // that sends or receives it
  Expr elements;
  BufferId buffer = kNone;       // sender: what is sent
  std::vector<int64_t> borders;  // as both ends must know them
};

// A piece of the activation arena, or a buffer with memory of its own.
struct Piece {
  BufferId owner = kNone;            // whose content it holds
  int64_t writer = -1, reader = -1;  // the last instances
};

// One rank's unrolled run.
class RankRun {
 public:
  RankRun(const Program& p, const Binding& binding, std::vector<std::string>& errors)
      : p(p),
        report(errors, p.rank),
        step_(unroll(p)),
        last_of_(p.phases.size(), -1),
        knows_(at(p.ranks), -1) {
    cut_memory(binding);
    number_instances();
    collect_messages();
  }

  const Program& p;
  std::vector<Clock> clocks;                   // per executed instance: what was known when its tiles ran
  std::vector<std::vector<Message>> messages;  // per channel, all steps
  Report report;

  int64_t next() const { return static_cast<int64_t>(clocks.size()); }
  bool is_done() const { return next() == kSteps * count(); }
  int64_t count() const { return static_cast<int64_t>(step_.size()); }
  const Instance& instance(int64_t number) const { return step_[number % count()]; }
  const Phase& phase(int64_t number) const { return p.phases[instance(number).phase]; }
  std::string place(int64_t number) const {
    return "phase " + std::to_string(instance(number).phase) + " '" + phase(number).name + "' trip " +
           std::to_string(instance(number).trip) + " of step " + std::to_string(number / count());
  }

  // The number of the message that instance `number` sends or receives on `channel`.
  int64_t message_number(int32_t channel, int64_t number) const;
  // The instance that a kPhase wait means; -1: none, -2: malformed.
  int64_t target(const Wait& wait, int64_t number) const;

  // Runs the next instance; `at_start`: what its waits tell.
  void execute(const Clock& at_start);

 private:
  void finish();
  void cut_memory(const Binding& binding);
  void number_instances();
  void collect_messages();
  void check_order(int64_t number);
  void check_message_waits(int64_t number);
  void read(BufferId buffer, int64_t number);
  void write(BufferId buffer, int64_t number);
  static std::vector<int64_t> borders_of(const Variant& variant);

  const std::vector<Instance> step_;
  std::vector<std::vector<int64_t>> numbers_;  // per phase and trip: place in the step
  std::vector<Range> pieces_of_;               // per buffer
  std::vector<Piece> pieces_;
  std::vector<int64_t> last_of_;             // per phase: last instance
  std::map<int32_t, int64_t> last_message_;  // per channel: last instance that used it
  std::set<BufferId> read_, written_;
  Clock knows_;  // of what the next instance may rely on
};

}  // namespace ark::validation
