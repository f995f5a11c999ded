// Einsum's equations, read once for shapes and kernels: "bij,bjk->bik", with "..." for axes that broadcast, spaces
// anywhere, and a result that may be left out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ark {

// A label an axis; those of "..." are \1, \2, ... counted from its last axis.
struct EinsumLabels {
  std::vector<std::string> operands;
  std::string result;
};

// `ranks`: one an operand. Throws Error(kInvalidArgument) if they do not fit, or the result has a label of its own.
EinsumLabels einsum_labels(std::string_view equation, const std::vector<int64_t>& ranks);

}  // namespace ark
