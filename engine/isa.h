// Instruction sets of the CPU kernels; all give the same bits.
#pragma once

#include <cstdint>

namespace ark {

enum class Isa : uint8_t { kScalar, kAvx2, kAvx512 };
Isa best_isa();  // of this machine

}  // namespace ark
