// Which products do themselves what comes between them and attention: their tiles of queries and keys are rotated, and
// keys and values put into their pages, by whoever finishes a tile (bodies/finished_tile.h). A phase less a layer.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/program/program.h"
#include "engine/program/unroll.h"

namespace ark::cuda {

inline constexpr std::size_t kProductOut = 4;  // operand of kMatMul

class Appended {
 public:
  // What a phase kKvAppend or kRotaryAppend takes from a product.
  struct Part {
    PhaseId append = kNone;
    bool is_rotated = false;
    std::size_t written = 0;  // its operand that the product writes: pages, or out
    std::size_t dims = 0;     // its operand [T, heads, D] that the product computes
    bool operator==(const Part&) const = default;
  };

  // A phase is done by products if each of its inputs is what one of them computes, in the same trip, for it alone,
  // with whole heads in each panel; and the positions are the step's own.
  explicit Appended(const Program& program);

  // The phase has no instances then.
  bool is_done(PhaseId append) const { return done_[static_cast<std::size_t>(append)]; }
  const std::vector<bool>& done() const { return done_; }  // by phase
  // Of a product; null: nothing.
  const Part* of(PhaseId product) const;
  // By instance of a step: what products write on the other phase's behalf, which is not where they still read.
  std::map<int32_t, std::vector<Access>> accesses(const Program& program, const Binding& binding) const;
  // By instance of a step: the outputs of the program that these products do not write.
  std::map<int32_t, std::vector<Access>> unwritten(const Program& program) const;

 private:
  std::vector<bool> done_;         // by phase
  std::map<PhaseId, Part> parts_;  // by product
};

}  // namespace ark::cuda
