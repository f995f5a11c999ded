// Proves that programs are sound before they run: what the executors rely on and never check themselves.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace ark {

// All ranks' programs together. What is checked:
// - structure (structure.cc): indices, sizes, buffers inside their arenas, repeats, channels in pairs;
// - phases (phases.cc): operands, element types, sizes, grids, recipes, epilogues of each OpCode;
// - recipes (recipes.cc): all ranks cut K of a weight at the same units, into the slabs that follow.
// - schedule (schedule.cc, rank.cc): two steps with all trips of all ranks, unrolled: no
//   deadlock; every read after the write of this step that it means, on every processor; every overwrite
//   after all reads; instances of a phase and messages of a channel one after another; no inbox overrun;
//   both ends of a channel agree on every message.
// Sizes are compared as expressions, so this holds for all their values up to the maxima.
// Returns one line an error, each with rank and place; empty: sound.
std::vector<std::string> validate(std::span<const Program> programs, std::span<const Binding> bindings);
// Throws Error(kBadModel) with the first error.
void check_programs(std::span<const Program> programs, std::span<const Binding> bindings);
// Shapes of a plain graph may be what its operators make at some sizes only. Throws Error(kUnsupported) naming the
// node where they are not; whoever runs the program with sizes that it has not seen relies on it.
void check_sizes(const Program& program, const SymbolValues& sizes);

namespace validation {

// Collects errors of one rank.
class Report {
 public:
  explicit Report(std::vector<std::string>& errors, int32_t rank = 0) : errors_(errors), rank_(rank) {}
  void add(const std::string& place, const std::string& what) {
    errors_.push_back("rank " + std::to_string(rank_) + ", " + place + ": " + what);
  }
  // `ok` passed through; adds an error if it is false.
  bool check(bool ok, const std::string& place, const std::string& what) {
    if (!ok) add(place, what);
    return ok;
  }
  bool is_clean() const { return errors_.empty(); }

 private:
  std::vector<std::string>& errors_;
  int32_t rank_;
};

// Each stage relies on the one before having found nothing.
void check_structure(const Program& program, const Binding& binding, Report& report);
void check_channels(std::span<const Program> programs, std::vector<std::string>& errors);
void check_phases(const Program& program, Report& report);
void check_recipes(std::span<const Program> programs, std::vector<std::string>& errors);
void check_schedule(std::span<const Program> programs, std::span<const Binding> bindings,
                    std::vector<std::string>& errors);

}  // namespace validation
}  // namespace ark
