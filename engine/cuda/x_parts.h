// Which of a program's buffers hold 16-bit parts instead of f32: those that only matrix products on tensor cores read,
// which would split x as often as they take it. Who computes such a buffer stores it split (bodies/parts.h); the bits
// that products get are the same.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/cuda/phase_operands.h"

namespace ark::cuda {

enum class Numerics : uint8_t;

// The type (kF16, kBF16) of the two parts that tensor cores take of x in a matrix product; none: its weights are not
// for them.
std::optional<DType> part_type(const PhaseOperands& product);

class XParts {
 public:
  explicit XParts(const Program& program);
  // None: the buffer is what the program says.
  std::optional<DType> of(BufferId buffer) const;

 private:
  const Program* program_;
  std::vector<std::optional<DType>> types_;  // by root
};

}  // namespace ark::cuda
