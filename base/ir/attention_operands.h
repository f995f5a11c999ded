// Where Op::kAttention has its operands and results; what they are stands in base/ir/ops.h.
#pragma once

#include <cstddef>

namespace ark::attention {

enum Operand : std::size_t { kQ, kK, kV, kBias, kPastK, kPastV, kLengths, kTotal, kSinks };
enum Result : std::size_t { kY, kPresentK, kPresentV, kResults };

}  // namespace ark::attention
