// Instruction sets of the CPU kernels, each with those before it; all give the same bits.
#pragma once

#include <array>
#include <cstdint>

#include "engine/program/program.h"

namespace ark {

enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16, kAvx512Amx };
// By number; those that ARK_ISA may name.
inline constexpr std::array<const char*, 6> kIsaNames = {"scalar",      "avx2",        "avx512",
                                                         "avx512_vnni", "avx512_bf16", "avx512_amx"};
// The best of this machine, or less if ARK_ISA says so. Throws Error(kUsage) on a name it does not know.
Isa best_isa();
// What it multiplies bf16 with faster than f32.
Bf16Unit bf16_unit();

}  // namespace ark
