// Instruction sets of the CPU kernels; all give the same bits.
#pragma once

#include <cstdint>

namespace ark {

enum class Isa : uint8_t { kScalar, kAvx2, kAvx512 };
// The best of this machine, or less if ARK_ISA says so. Throws Error(kUsage) on a name it does not know.
Isa best_isa();

}  // namespace ark
