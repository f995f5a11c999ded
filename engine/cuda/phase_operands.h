// One execution of a phase, as the tables of device code describe it.
#pragma once

#include <string>
#include <vector>

#include "engine/cuda/image.h"
#include "engine/program/program.h"

namespace ark::cuda {

class PhaseOperands {
 public:
  PhaseOperands(const Program& program, const Phase& phase, int32_t trip);

  const Program& program() const { return program_; }
  const Phase& phase() const { return phase_; }
  const Variant& variant() const { return program_.variants[phase_.variant]; }
  const std::vector<BufferId>& ids() const { return ids_; }  // kNone: absent
  std::size_t count() const { return ids_.size(); }
  const Buffer& buffer(std::size_t operand) const { return program_.buffers[ids_[operand]]; }
  const WeightUse& weight(std::size_t operand) const { return program_.weights[buffer(operand).weight]; }
  std::size_t rank(std::size_t operand) const { return buffer(operand).dims.size(); }
  // What a dim is; -1 if it changes from step to step.
  int64_t constant_dim(std::size_t operand, std::size_t axis) const;

  Size size(ValId val) const;
  Size dim(std::size_t operand, std::size_t axis) const { return size(buffer(operand).dims[axis]); }
  Size last_dim(std::size_t operand) const;
  // Sizes whose product is the product of the dims [first, last) of an operand, into to[0..3].
  void product(std::size_t operand, std::size_t first, std::size_t last, Size* to) const;
  // The same as one size; refuses where there is none.
  Size one_size(std::size_t operand, std::size_t first, std::size_t last, const char* what) const;

  // Throws Error(kUnsupported) naming the node.
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  const Program& program_;
  const Phase& phase_;
  std::vector<BufferId> ids_;
};

// What the constant of a val is; -1 if it changes from step to step.
int64_t constant_of(const Program& program, ValId val);

}  // namespace ark::cuda
