#include "engine/cuda/phase_operands.h"

#include "base/error.h"
#include "engine/cuda/x_parts.h"

namespace ark::cuda {

namespace {

// -1: it changes from step to step.
int64_t constant_of(const Program& program, ValId val) { return program.vals[val].e.constant().value_or(-1); }

}  // namespace

void PhaseOperands::refuse(const std::string& why) const {
  throw Error(Code::kUnsupported,
              "node " + escaped(phase().name) + " has no device code: " + why + "; run with --device cpu");
}

int64_t PhaseOperands::constant_dim(std::size_t operand, std::size_t axis) const {
  return constant_of(program(), buffer(operand).dims[axis]);
}

std::optional<DType> PhaseOperands::parts(std::size_t operand) const {
  return parts_ ? parts_->of(id(operand)) : std::nullopt;
}

Size PhaseOperands::size(ValId val) const {
  const int64_t constant = constant_of(program(), val);
  if (constant > INT32_MAX) refuse("a size beyond 2^31");
  return constant >= 0 ? static_cast<Size>(constant) : ~val;
}

Size PhaseOperands::last_dim(std::size_t operand) const {
  return buffer(operand).dims.empty() ? 1 : size(buffer(operand).dims.back());
}

void PhaseOperands::product(std::size_t operand, std::size_t first, std::size_t last, Size* to) const {
  std::size_t used = 1;
  to[0] = to[1] = to[2] = to[3] = 1;
  for (std::size_t a = first; a < last; ++a) {
    const Size s = dim(operand, a);
    if (s >= 0) {
      to[0] *= s;
    } else {
      if (used == 4) refuse("more than three sizes that change from step to step");
      to[used++] = s;
    }
  }
}

Size PhaseOperands::one_size(std::size_t operand, std::size_t first, std::size_t last,
                             const char* what) const {
  Size p[4];
  product(operand, first, last, p);
  if (p[1] == 1) return p[0];
  if (p[0] == 1 && p[2] == 1) return p[1];
  refuse(std::string(what) + " depends on a product of sizes");
}

}  // namespace ark::cuda
