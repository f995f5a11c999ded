// Sizes of a kGeneric phase's operands against its kernel's own rule.
#pragma once

#include <span>
#include <string>

#include "base/expr.h"
#include "base/ir/attributes.h"
#include "base/ir/ops.h"

namespace ark {

struct GenericOperand {
  DType dtype = DType::kUndefined;  // kUndefined: absent
  Shape shape;
};

// The attributes with every Expr evaluated, as kernels want them.
Attributes evaluated(const Attributes& attributes, const SymbolValues& values);

// Empty, or what is wrong: asks Kernel::shapes at the largest sizes and at half of them. Operators whose
// output size follows from the values of an input are not asked.
std::string check_generic(Op op, const Attributes& attributes, std::span<const GenericOperand> inputs,
                          std::span<const GenericOperand> outputs, const SymbolValues& most);

}  // namespace ark
