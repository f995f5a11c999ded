#include "engine/cpu/simd/table.h"

#include <cpuid.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace ark {

namespace {

Isa isa_of_machine() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  unsigned a = 0, b = 0, c = 0, d = 0;  // clang 14 knows no feature "f16c"
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
  if (avx512 && avx2) return Isa::kAvx512;
  if (avx2) return Isa::kAvx2;
#endif
  return Isa::kScalar;
}

// ARK_ISA=scalar|avx2|avx512 asks for less than the machine has: to compare, or to find a fault.
Isa wanted_isa() {
  const char* name = std::getenv("ARK_ISA");
  if (!name || !*name) return Isa::kAvx512;
  for (const auto& [word, isa] :
       {std::pair{"scalar", Isa::kScalar}, {"avx2", Isa::kAvx2}, {"avx512", Isa::kAvx512}})
    if (std::strcmp(name, word) == 0) return isa;
  throw Error(Code::kUsage, "ARK_ISA=" + escaped(name) + " is none of scalar, avx2, avx512");
}

}  // namespace

Isa best_isa() {
  static const Isa isa = std::min(isa_of_machine(), wanted_isa());
  return isa;
}

namespace simd {

const Table& table_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return kAvx512Table;
    case Isa::kAvx2:
      return kAvx2Table;
    case Isa::kScalar:
      break;
  }
  return kScalarTable;
}

}  // namespace simd
}  // namespace ark
