// One execution of a phase, as the tables of device code describe it.
#pragma once

#include <optional>
#include <string>

#include "engine/cuda/image.h"
#include "engine/program/phase_view.h"

namespace ark::cuda {

class XParts;

class PhaseOperands : public PhaseView {
 public:
  // `parts`: null, or what outlives this.
  PhaseOperands(const Program& program, const Phase& phase, int32_t trip, const XParts* parts = nullptr)
      : PhaseView(program, phase, trip), parts_(parts) {}

  std::size_t rank(std::size_t operand) const { return buffer(operand).dims.size(); }
  // What a dim is; -1 if it changes from step to step.
  int64_t constant_dim(std::size_t operand, std::size_t axis) const;

  // The type of the 16-bit parts that an operand's buffer holds; none: it is what the program says.
  std::optional<DType> parts(std::size_t operand) const;

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
  const XParts* parts_;
};

}  // namespace ark::cuda
